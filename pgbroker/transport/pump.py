"""Feeds the consumers of one connection: claims jobs, reads mail, settles, sleeps and wakes.

One statement is in flight at a time (:mod:`pgbroker.transport.conversation`). In a worker's event loop
:meth:`Pump.tick` sends it and returns, and :meth:`Pump.on_readable` takes the answer when the socket has it; without a
loop :meth:`Pump.drain` does both and waits in between. What to send next is decided in :meth:`Pump._choose`, in the
order: what cannot ride along, mail, claims (with settles riding along), settles, a look around before sleeping.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.queue.claiming import Claiming
from pgbroker.queue.leases import LeaseKeeper
from pgbroker.queue.store import Report
from pgbroker.transport.consumers import Consumers, Subscription
from pgbroker.transport.conversation import Conversation, Saying
from pgbroker.transport.ears import Ears
from pgbroker.transport.events import EventBuffer
from pgbroker.transport.seat import Seat
from pgbroker.transport.unbound import UnboundExchanges
from pgbroker.transport.waker import Waker
from pgbroker.transport.watch import Watch

#: While busy, settles wait for each other at most so long; when nothing is held they go at once.
SETTLE_SECONDS = 0.01

#: Without NOTIFY, the longest pause between two looks.
POLLING_SECONDS = 1.0

#: With NOTIFY, the longest pause: a publish wakes nobody for a job that becomes due later than that.
LONGEST_POLL_SECONDS = 10.0


class Pump:
    """The consuming side of one connection.

    Args:
        options: The broker.
        keeper: The process's lease thread, with what the process holds.
        claiming: Its claims that are on their way.
        unbound: What the process knows of exchanges without bindings; this pump listens for new ones.
        events: The process's events on their way, which this pump sends while an event loop drives it.
    """

    def __init__(
        self,
        options: Options,
        keeper: LeaseKeeper,
        claiming: Claiming,
        unbound: UnboundExchanges,
        events: EventBuffer,
    ) -> None:
        self.options, self.keeper, self.claiming = options, keeper, claiming
        self.ledger = ledger = keeper.ledger
        self.store, self.routing = keeper.store, keeper.routing
        self._talk = Conversation(options, self._on_timeout)
        self._ears = Ears(options, self._talk.session, self.store, self.routing, unbound)
        self.consumers = Consumers(ledger)
        self.waker = Waker()
        self._events = events
        self.is_closed = False
        poll_seconds = min(options.poll_interval, LONGEST_POLL_SECONDS if options.notify else POLLING_SECONDS)
        self._jobs, self._mail = Watch(poll_seconds), Watch(poll_seconds)
        self._seat: Seat | None = None
        self._is_draining = self._is_ticking = False
        self._settled_at = 0.0

    # -- consumers ----------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Begin to feed a consumer."""
        self.connect()
        self.consumers.add(subscription)
        if not subscription.is_transient:
            self.ledger.tell(self.waker.signal)
        if self._talk.is_busy:
            self._receive(wait=True)
        self._ears.listen([subscription.queue])
        (self._mail if subscription.is_transient else self._jobs).wake()
        self.keeper.start()

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop feeding a consumer. What was fetched for it and not handed out goes back to its queue."""
        for mail in self.consumers.remove(subscription.tag):
            self.ledger.say(self.routing.return_mail(mail, is_redelivered=False))

    def connect(self) -> None:
        """Open the session unless it is open."""
        if self._talk.connect():
            self._ears.forget()

    # -- driven by an event loop --------------------------------------------------------------------

    def register(self, loop: Any) -> None:
        """Let kombu's hub drive this pump."""
        self.connect()
        self.waker.own()
        readers: dict[Any, Callable[..., None]] = {self._talk.session: self.on_readable, self.waker: self.waker.drain}
        if self._ears.listener is not None:
            self._ears.listener.connect()
            readers[self._ears.listener] = self.on_readable
        self._seat = Seat(loop, self.tick, readers, self.waker.poke)
        self._events.drive(self.waker.signal)

    @property
    def is_driven(self) -> bool:
        """Whether somebody will call :meth:`tick` soon without being asked."""
        return self._seat is not None or self._is_draining

    def tick(self) -> None:
        """Send the next statement if there is one to send; never waits."""
        if self.is_closed:
            return
        self._is_ticking = True
        try:
            if self._seat is not None:
                self.consumers.hand_out()  # acks have made room
            self._send_next(time.monotonic())
        finally:
            self._is_ticking = False

    def on_readable(self, *_: Any) -> None:
        """Take what the socket has: notifications, the answer to the statement in flight."""
        if not self.is_closed:
            self._receive(wait=False)

    def _arm(self, at: float) -> None:
        if self._seat is not None:
            self._seat.arm(at, is_ticking=self._is_ticking)

    # -- driven by its caller -----------------------------------------------------------------------

    def drain(self, timeout: float | None) -> None:
        """Wait for a message and hand it out; one at a time, as callers count on who ask for so many.

        Args:
            timeout: Seconds; ``None`` waits for ever, 0 only looks.

        Raises:
            TimeoutError: Nothing came in time.
            ConnectionLost: The connection broke.
        """
        self.waker.own()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._is_draining, is_over = True, False
        try:
            while True:
                self.tick()
                if self.consumers.hand_out(limit=1):
                    return
                if is_over:
                    raise TimeoutError("no message within the time-out")
                until = self._next_at() if deadline is None else min(deadline, self._next_at())
                self._wait(max(0.0, until - time.monotonic()))
                is_over = deadline is not None and time.monotonic() >= deadline
        finally:
            self._is_draining = False

    def _wait(self, seconds: float) -> None:
        poller = select.poll()
        fds: dict[int, Callable[..., None]] = {self.waker.fileno(): self.waker.drain}
        for session in (self._talk.session, self._ears.listener):
            if session is not None and session.is_open:
                fds[session.fileno()] = self.on_readable
        for fd in fds:
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(seconds * 1000):
            fds[fd]()

    def _next_at(self) -> float:
        """When :meth:`tick` may have something to do again, on the monotonic clock."""
        if self._talk.is_busy:
            return self._talk.overdue_at
        at = [time.monotonic() + 3600.0]
        has_room = self.consumers.hungriest()[1] > 0
        if self.ledger.news_age is not None or (has_room and self._jobs.has_news):
            at.append(self._settled_at + SETTLE_SECONDS)
        if has_room and not self._jobs.has_news:
            at.append(self._jobs.look_at)
        if self.consumers.has_mailbox:
            at.append(self._mail.look_at)
        return min(at)

    # -- what to send -------------------------------------------------------------------------------

    def _send_next(self, now: float) -> None:
        if self._talk.is_busy:
            self._talk.fail_if_overdue()
            self._arm(self._talk.overdue_at)
            return
        saying = self._choose(now)
        if saying is not None:
            self._talk.say(saying)

    def _choose(self, now: float) -> Saying | None:
        call = self.ledger.take_call()
        if call is not None:
            return Saying(call, lambda _: self.ledger.call_said(call), lambda exc: self.ledger.refused(call, exc))
        lost = self.claiming.look()
        if lost is not None:
            looked = self.claiming.looked
            return Saying(lost, lambda _: looked(is_done=True), lambda _: looked(is_done=False))
        if (saying := self._send_events(now)) is not None:
            return saying
        if self._mail.has_news and (room := self.consumers.mail_room()) > 0:
            queues = self.consumers.rotated(self.consumers.mail_queues())
            self.consumers.next_turn()
            return Saying(self.routing.fetch_mail(queues, room), lambda rows: self._on_mail(rows, room))
        channel, want, is_worthwhile = self.consumers.hungriest()
        news_age = self.ledger.news_age
        is_rested = now - self._settled_at >= SETTLE_SECONDS
        is_news_due = news_age is not None and (not len(self.ledger) or is_rested)
        # a small claim waits for company, but never long: a free slot may stand idle
        is_worthwhile = is_worthwhile or is_news_due or is_rested
        want_now = want if self._jobs.has_news and is_worthwhile else 0
        if want_now or is_news_due:
            # a worker that is never idle must look after its mailbox all the same
            return self._look(now, with_jobs=False) or self._exchange(now, channel, want_now)
        if news_age is not None or (want and self._jobs.has_news):
            self._arm(self._settled_at + SETTLE_SECONDS)
        return self._look(now, with_jobs=bool(want) and not self._jobs.has_news)

    def _send_events(self, now: float) -> Saying | None:
        if self._seat is None or not len(self._events):
            return None
        if now < self._events.due_at:
            self._arm(self._events.due_at)
            return None
        return self._events.saying(self.routing.prefix, now)

    def _exchange(self, now: float, channel: Any, want: int) -> Saying:
        if want and not self.claiming.begin():
            want = 0
        report = self.ledger.take_report()
        queues = self.consumers.job_queues(channel) if want else []
        if want and self.options.queue_order == "fair":
            queues = self.consumers.rotated(queues)
            self.consumers.next_turn()
        self._settled_at = now
        call = self.store.exchange(
            report,
            self.ledger.worker,
            queues,
            want,
            self.options.lease_seconds,
            reports_start=channel is not None and channel.reports_start,
            low_first=self.options.priority_order == "low_first",
        )
        return Saying(
            call,
            lambda rows: self._on_exchanged(report, channel, rows, want),
            lambda exc: self._on_not_exchanged(report, want),
        )

    def _look(self, now: float, *, with_jobs: bool) -> Saying | None:
        """Look if it is time, and register as a sleeper: for jobs with hands free for them, for mail always."""
        watches = ([self._jobs] if with_jobs else []) + ([self._mail] if self.consumers.has_mailbox else [])
        if not watches:
            return None
        look_at = min(watch.look_at for watch in watches)
        if now < look_at:
            self._arm(look_at)
            return None
        queues = self.consumers.mail_queues() + (self.consumers.job_queues() if with_jobs else [])
        channel_name = self._ears.own_channel if self._ears.is_open else None
        call = self.store.doze(queues, channel_name, 2 * self.options.poll_interval)
        return Saying(call, lambda rows: self._on_looked(*rows[0], with_jobs=with_jobs))

    # -- what comes back ----------------------------------------------------------------------------

    def _receive(self, *, wait: bool) -> None:
        self._talk.hear(wait=wait)
        # after the answer: a claim that came back short was made before whatever is notified now
        try:
            channels = self._ears.take()
        except errors.PgBrokerError as exc:
            self._talk.fail(exc)
        else:
            self._on_notified(channels)
        if self._seat is not None:
            self.consumers.hand_out()

    def _on_timeout(self) -> None:
        self._jobs.pause(POLLING_SECONDS)
        self._mail.pause(POLLING_SECONDS)

    def _on_exchanged(self, report: Report, channel: Any, rows: list[tuple[Any, ...]], want: int) -> None:
        self.ledger.said(report)
        if want and len(rows) < want:
            self._jobs.emptied(found_some=bool(rows))
        was_idle = not len(self.ledger)
        self.consumers.take_claimed(rows, channel)
        if want:
            self.claiming.end()
        if rows and was_idle:
            self.keeper.nudge()  # it sleeps long while nothing is held, and must see by now that something is

    def _on_not_exchanged(self, report: Report, want: int) -> None:
        self.ledger.return_report(report)
        if want:
            self.claiming.end(is_lost=True)

    def _on_mail(self, rows: list[tuple[Any, ...]], want: int) -> None:
        if len(rows) < want:
            self._mail.emptied(found_some=bool(rows))
        self.consumers.take_mail(rows)

    def _on_looked(self, due_seconds: float | None, is_ready: bool, has_mail: bool, *, with_jobs: bool) -> None:
        if with_jobs:
            self._jobs.looked(is_there=is_ready, due_seconds=due_seconds)
            self._arm(self._jobs.look_at)
        self._mail.looked(is_there=has_mail)
        self._arm(self._mail.look_at)

    def _on_notified(self, channels: set[str]) -> None:
        if not channels:
            return
        self._mail.wake()
        queues = self.consumers.job_queues()
        if queues and self._ears.own_channel in channels and not self.consumers.hungriest()[1]:
            # woken with no hands free: the job is for somebody else
            self.ledger.say(self.store.wake(queues))
        self._jobs.wake()

    # -- the end ------------------------------------------------------------------------------------

    def close(self, *, is_lost: bool = False) -> None:
        """Stop. What was not started is given back, what is to be said is said.

        Args:
            is_lost: The connection is known to be broken: nothing is sent, the lease thread does the rest once it
                reaches the server again.
        """
        if self.is_closed:
            return
        if self._seat is not None:
            self._seat.leave()
            self._seat = None  # what a claim under way still brings is handed to nobody
        self.ledger.tell_no_more(self.waker.signal)
        self._events.drive_no_more(self.waker.signal)
        gone = list(self.consumers)
        for subscription in gone:
            self.keeper.dismiss(subscription.known_as)
        if not is_lost and self._talk.session.is_open:
            try:
                self._wind_up(gone)
            except errors.PgBrokerError:
                is_lost = True
        self.is_closed = True
        self._ears.close()
        self._talk.close()
        self.ledger.retire({subscription.tag for subscription in gone}, but_submitted=is_lost)
        if is_lost and gone:
            self.ledger.say(self.routing.depart(self.ledger.worker, [s.known_as for s in gone]))
        self.waker.close()
        self.keeper.nudge()

    def _wind_up(self, gone: list[Subscription]) -> None:
        session = self._talk.session
        if self._talk.is_busy:
            self._receive(wait=True)
        for subscription in gone:
            for mail in self.consumers.remove(subscription.tag):
                session.query(*self.routing.return_mail(mail, is_redelivered=False))
        self.ledger.retire({subscription.tag for subscription in gone})
        self.ledger.give_back(0.0)
        while len(self._events):
            session.query(*self._events.saying(self.routing.prefix, 0.0).call)
        self.keeper.say_everything(session)
        if gone:
            session.query(*self.routing.depart(self.ledger.worker, [s.known_as for s in gone]))
