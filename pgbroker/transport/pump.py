"""Feeds the consumers of one connection: claims jobs, reads mail, settles, sleeps and wakes.

One statement is in flight at a time, on a session of its own. In a worker's event loop :meth:`Pump.tick` sends it
and returns, and :meth:`Pump.on_readable` takes the answer when the socket has it; without a loop
:meth:`Pump.drain` does both and waits in between. What to send next is decided in :meth:`Pump._choose`, in the
order: what cannot ride along, mail, claims (with settles riding along), settles, sleep.
"""

from __future__ import annotations

import dataclasses
import secrets
import select
import time
from collections.abc import Callable, Iterable
from typing import Any

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres import migrate
from pgbroker.postgres.connection import STATEMENT_DEADLINE_SECONDS, Session
from pgbroker.queue.leases import LeaseKeeper
from pgbroker.queue.ledger import Ledger, Tag
from pgbroker.queue.routing import Mail
from pgbroker.queue.store import Call, Claimed
from pgbroker.transport.envelope import open_claimed, open_mail
from pgbroker.transport.waker import Waker

#: While busy, settles wait for each other at most so long; when nothing is held they go at once.
SETTLE_SECONDS = 0.01

#: Looks after falling asleep, in seconds, before the wake-up and the slow poll are relied on.
DOZE_STAGES = (0.0, 0.02, 0.1, 0.5)

#: Messages read from mailboxes in one go.
MAIL_BATCH = 100

#: Without NOTIFY, the longest pause between two looks.
POLLING_SECONDS = 1.0


@dataclasses.dataclass(slots=True)
class Subscription:
    """One consumer: ``callback`` gets each message of ``queue``.

    ``known_as`` is its tag on the books: kombu numbers tags in each process from 1.
    """

    tag: str
    known_as: str
    queue: str
    is_transient: bool
    no_ack: bool
    callback: Callable[[Any], Any]
    channel: Any


class Pump:
    """The consuming side of one connection.

    Args:
        options: The broker.
        ledger: What the process holds.
        keeper: The process's lease thread.
    """

    def __init__(self, options: Options, ledger: Ledger, keeper: LeaseKeeper) -> None:
        self.options, self.ledger, self.keeper = options, ledger, keeper
        self.store, self.routing = keeper.store, keeper.routing
        self.session = Session(options, "consume")
        listen_options = options.listen_options()
        self.listener = Session(listen_options, "listen") if listen_options and options.notify else None
        self.subscriptions: dict[str, Subscription] = {}
        self.channel_name = f"pgbw_{secrets.token_hex(12)}"
        self.waker = Waker()
        self.is_closed = False
        self.delivered = 0
        self._loop: Any = None
        self._timer: Any = None
        self._timer_at = 0.0
        self._is_draining = self._is_ticking = False
        self._expect: Callable[[list[tuple[Any, ...]]], None] | None = None
        self._on_failure: Callable[[], None] | None = None
        self._sent_at = self._settled_at = 0.0
        self._listening: set[str] = set()
        self._look_now = self._mail_now = False
        self._stage = self._mail_stage = 0
        self._look_at = self._watch_mail_at = 0.0
        self._turn = 0

    # -- subscriptions ------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Begin to feed a consumer."""
        self.connect()
        self.subscriptions[subscription.tag] = subscription
        if not subscription.is_transient:
            self.ledger.tell(self.waker.signal)
        self._listen([subscription.queue])
        self._look_now = self._mail_now = True
        self._mail_stage, self._watch_mail_at = 0, 0.0
        self.keeper.start()

    def unsubscribe(self, tag: str) -> Subscription | None:
        """Stop feeding a consumer."""
        return self.subscriptions.pop(tag, None)

    def connect(self) -> None:
        """Open the session unless it is open, and listen again after a reconnect."""
        if not self.session.is_open:
            self._listening.clear()
            self.session.connect()
            migrate.ensure_schema(self.session)

    def _listen(self, queues: Iterable[str]) -> None:
        """LISTEN for our own channel and those that transactions use; before the next claim, never after it."""
        if not self.options.notify:
            return
        if self.session.is_busy:
            self._receive(wait=True)
        names = {row[0] for row in self.session.query(*self.store.queue_channels(list(queues)))}
        new = ({self.channel_name} | names) - self._listening
        if new:
            session = self.listener or self.session
            session.query("; ".join(f'listen "{name}"' for name in sorted(new)))
            self._listening |= new

    # -- the event loop -----------------------------------------------------------------------------

    def register(self, loop: Any) -> None:
        """Let kombu's hub drive this pump."""
        self.connect()
        self._loop = loop
        self.waker.own()
        loop.add_reader(self.session.fileno(), self.on_readable)
        loop.add_reader(self.waker.fileno(), self.waker.drain)
        if self.listener is not None:
            self.listener.connect()
            loop.add_reader(self.listener.fileno(), self.on_readable)
        loop.on_tick.add(self.tick)

    def _unregister(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.on_tick.discard(self.tick)
        if self._timer is not None:
            self._timer.cancel()
        for end in (self.session, self.waker, self.listener):
            try:
                if end is not None:
                    loop.remove_reader(end.fileno())
            except (errors.ConnectionLost, OSError, KeyError, ValueError):
                pass

    @property
    def is_driven(self) -> bool:
        """Whether somebody will call :meth:`tick` soon without being asked."""
        return self._loop is not None or self._is_draining

    def tick(self) -> None:
        """Send the next statement if there is one to send; never waits."""
        if self.is_closed:
            return
        self._is_ticking = True
        try:
            self._send_next(time.monotonic())
        finally:
            self._is_ticking = False

    def _send_next(self, now: float) -> None:
        if self.session.is_busy:
            if now - self._sent_at > STATEMENT_DEADLINE_SECONDS:
                self._fail(errors.ConnectionLost(f"no answer from Postgres within {STATEMENT_DEADLINE_SECONDS:g} s"))
            self._arm(self._sent_at + STATEMENT_DEADLINE_SECONDS)
            return
        call = self._choose(now)
        if call is not None:
            self._sent_at = now
            try:
                self.session.send(*call)
            except errors.PgBrokerError as exc:
                self._fail(exc)

    def on_readable(self, *_: Any) -> None:
        """Take what the socket has: notifications, the answer to the statement in flight."""
        if self.is_closed:
            return
        self._receive(wait=False)

    def drain(self, timeout: float | None) -> None:
        """Wait until at least one message was delivered.

        Args:
            timeout: Seconds; ``None`` waits for ever, 0 only looks.

        Raises:
            TimeoutError: Nothing was delivered in time.
            ConnectionLost: The connection broke.
        """
        self.waker.own()
        deadline = None if timeout is None else time.monotonic() + timeout
        before = self.delivered
        self._is_draining = True
        try:
            while True:
                self.tick()
                left = 3600.0 if deadline is None else deadline - time.monotonic()
                if self.session.is_busy or left > 0:
                    self._wait(max(0.0, min(left, self._next_at() - time.monotonic())))
                if self.delivered != before:
                    return
                if left <= 0:
                    raise TimeoutError("no message within the time-out")
        finally:
            self._is_draining = False

    def _wait(self, seconds: float) -> None:
        poller = select.poll()
        fds = {self.waker.fileno(): self.waker.drain}
        if self.session.is_open:
            fds[self.session.fileno()] = self.on_readable
        if self.listener is not None and self.listener.is_open:
            fds[self.listener.fileno()] = self.on_readable
        for fd in fds:
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(seconds * 1000):
            fds[fd]()

    def flush(self) -> None:
        """Say what there is to say and wait until it is done; for consumers that no loop drives."""
        if self.session.is_busy:
            self._receive(wait=True)
        self.connect()
        self.keeper.say_everything(self.session)

    # -- what to send -------------------------------------------------------------------------------

    def _choose(self, now: float) -> Call | None:
        call = self.ledger.take_call()
        if call is not None:
            return self._say(call)
        if self._mail_now and (queues := self._queues(is_transient=True)):
            self._mail_now = False
            self._expecting(self._on_mail)
            return self.routing.fetch_mail(queues, MAIL_BATCH)
        if now >= self._watch_mail_at and self._has_mailbox:
            return self._watch_mail()
        channel, want = self._hungriest()
        news_age = self.ledger.news_age
        is_news_due = news_age is not None and (not len(self.ledger) or now - self._settled_at >= SETTLE_SECONDS)
        if not self._look_now:
            want_now = 0
        else:
            want_now = want if is_news_due or (channel and want >= channel.window.worthwhile) else 0
        if want_now or is_news_due:
            return self._exchange(now, channel, want_now)
        if news_age is not None:
            self._arm(self._settled_at + SETTLE_SECONDS)
        elif not self._look_now and want:
            if now >= self._look_at:
                return self._doze()
            self._arm(self._look_at)
        if self._has_mailbox:
            self._arm(self._watch_mail_at)
        return None

    def _hungriest(self) -> tuple[Any, int]:
        """A channel that consumes jobs and how many it has room for; channels take turns."""
        channels = list(dict.fromkeys(s.channel for s in self.subscriptions.values() if not s.is_transient))
        if not channels:
            return None, 0
        at = self._turn % len(channels)
        channel = max(channels[at:] + channels[:at], key=lambda c: c.window.room)
        return channel, min(channel.window.room, channel.free_slots())

    def _queues(self, *, is_transient: bool, channel: Any = None) -> list[str]:
        return list(
            dict.fromkeys(
                s.queue
                for s in self.subscriptions.values()
                if s.is_transient is is_transient and channel in (None, s.channel)
            )
        )

    @property
    def _has_mailbox(self) -> bool:
        return any(s.is_transient for s in self.subscriptions.values())

    def _exchange(self, now: float, channel: Any, want: int) -> Call:
        report = self.ledger.take_report()
        queues = self._queues(is_transient=False, channel=channel) if want else []
        if self.options.queue_order == "fair" and len(queues) > 1:
            at = self._turn % len(queues)
            queues = queues[at:] + queues[:at]
        self._settled_at = now
        self._turn += 1 if want else 0
        self._expecting(lambda rows: self._on_claimed(rows, want), lambda: self.ledger.return_report(report))
        return self.store.exchange(
            report,
            self.ledger.worker,
            queues,
            want,
            self.options.lease_seconds,
            reports_start=channel is not None and channel.reports_start,
            low_first=self.options.priority_order == "low_first",
        )

    def _say(self, call: Call) -> Call:
        self._expecting(_ignore, lambda: self.ledger.return_call(call))
        return call

    def _doze(self) -> Call:
        self._expecting(self._on_dozed)
        return self._look_at_queues([s.queue for s in self.subscriptions.values()])

    def _watch_mail(self) -> Call:
        """Register for mail alone: a worker that is busy, or has no hands free, never dozes."""
        self._expecting(self._on_mail_watched)
        return self._look_at_queues(self._queues(is_transient=True))

    def _look_at_queues(self, queues: list[str]) -> Call:
        channel_name = self.channel_name if self.options.notify else None
        return self.store.doze(queues, channel_name, 2 * self.options.poll_interval)

    def _expecting(
        self, done: Callable[[list[tuple[Any, ...]]], None], failed: Callable[[], None] | None = None
    ) -> None:
        self._expect, self._on_failure = done, failed

    # -- what comes back ----------------------------------------------------------------------------

    def _receive(self, *, wait: bool) -> None:
        rows = None
        try:
            is_complete = wait or self.session.pump()
            rows = self.session.receive() if is_complete and self.session.is_busy else None
        except errors.PgBrokerError as exc:
            self._fail(exc)
            return
        if rows is not None:
            done, self._expect, self._on_failure = self._expect, None, None
            if done is not None:
                done(rows)
        # after the answer: a claim that came back short was made before whatever is notified now
        try:
            self._notified(self.session.take_notifications())
            if self.listener is not None and self.listener.is_open:
                self._notified(self.listener.take_notifications())
        except errors.PgBrokerError as exc:
            self._fail(exc)

    def _fail(self, exc: errors.PgBrokerError) -> None:
        """Keep what could not be said, and raise what makes the owner connect again."""
        failed, self._expect, self._on_failure = self._on_failure, None, None
        if failed is not None:
            failed()
        if isinstance(exc, errors.StatementTimeout):
            self._look_at, self._mail_now = time.monotonic() + POLLING_SECONDS, True
            return
        self.session.close()
        if isinstance(exc, errors.DatabaseUnreachable):
            raise exc
        raise errors.ConnectionLost(f"the server refused a statement of the consumer: {exc}") from exc

    def _notified(self, channels: list[str]) -> None:
        if not channels:
            return
        self._mail_now = self._mail_now or self._has_mailbox
        # a doze looks after the mailboxes too; if there is none soon, register for mail again
        self._mail_stage, self._watch_mail_at = 0, min(self._watch_mail_at, time.monotonic() + DOZE_STAGES[1])
        _, want = self._hungriest()
        if self.channel_name in channels and not want and (queues := self._queues(is_transient=False)):
            # woken with no hands free: the job is for somebody else
            self.ledger.say(self.store.wake(queues))
        self._look_now, self._stage = True, 0

    def _on_claimed(self, rows: list[tuple[Any, ...]], want: int) -> None:
        if want and len(rows) < want:
            self._look_now, self._look_at = False, 0.0
        if rows:
            self._stage = 0
        by_queue = {s.queue: s for s in self.subscriptions.values() if not s.is_transient}
        messages = []
        for row in rows:
            claimed = Claimed(*row)
            subscription = by_queue.get(claimed.queue)
            if subscription is None:  # cancelled while the claim was under way
                self.ledger.deliver(Tag(claimed.job_id, claimed.claim), "")
                self.ledger.retire({""})
                continue
            message = open_claimed(claimed, subscription.channel, subscription.tag)
            self.ledger.deliver(message.delivery_tag, subscription.tag)
            messages.append((subscription, message))
        for subscription, message in messages:
            self._deliver(subscription, message)

    def _on_mail(self, rows: list[tuple[Any, ...]]) -> None:
        self._mail_now = len(rows) >= MAIL_BATCH
        by_queue = {s.queue: s for s in self.subscriptions.values() if s.is_transient}
        for row in rows:
            mail = Mail(*row)
            subscription = by_queue.get(mail.queue)
            if subscription is not None:
                self._deliver(subscription, open_mail(mail, subscription.channel, subscription.tag))

    def _deliver(self, subscription: Subscription, message: Any) -> None:
        self.delivered += 1
        tag = message.delivery_tag
        if subscription.no_ack:
            self.ledger.ack(tag)
        elif not subscription.is_transient:
            subscription.channel.window.add(tag)
        subscription.callback(message)

    def _on_dozed(self, rows: list[tuple[Any, ...]]) -> None:
        due_seconds, is_ready, has_mail = rows[0]
        now = time.monotonic()
        self._stage += 1
        pause = self._pause(self._stage)
        if due_seconds is not None:
            pause = min(pause, due_seconds)
        self._look_at = now + max(pause, 0.001)
        self._look_now = is_ready
        self._mail_now = self._mail_now or (has_mail and self._has_mailbox)
        # the doze that follows looks at the mailboxes too
        self._watch_mail_at = now + self._pause(len(DOZE_STAGES)) * 1.5
        self._arm(self._look_at)

    def _on_mail_watched(self, rows: list[tuple[Any, ...]]) -> None:
        self._mail_now = self._mail_now or rows[0][2]
        self._mail_stage += 1
        self._watch_mail_at = time.monotonic() + max(self._pause(self._mail_stage), 0.001)
        self._arm(self._watch_mail_at)

    def _pause(self, stage: int) -> float:
        """Seconds between two looks, after so many looks that found nothing."""
        if stage < len(DOZE_STAGES):
            return DOZE_STAGES[stage]
        return self.options.poll_interval if self.options.notify else min(POLLING_SECONDS, self.options.poll_interval)

    # -- timers and the end -------------------------------------------------------------------------

    def _next_at(self) -> float:
        """When :meth:`tick` may have something to do again, on the monotonic clock."""
        at = [time.monotonic() + 3600.0]
        if self.session.is_busy:
            return self._sent_at + STATEMENT_DEADLINE_SECONDS
        if self.ledger.news_age is not None:
            at.append(self._settled_at + SETTLE_SECONDS)
        if not self._look_now and self._hungriest()[1]:
            at.append(self._look_at)
        if self._has_mailbox:
            at.append(self._watch_mail_at)
        return min(at)

    def _arm(self, at: float) -> None:
        """Make sure that the loop ticks at that time."""
        if self._loop is None:
            return
        now = time.monotonic()
        if self._timer is not None and not self._timer.canceled and now < self._timer_at <= at + 0.001:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_later(max(0.0, at - now), _nothing), at
        if self._is_ticking:
            # kombu's hub has worked out how long it will sleep before it calls the ticks
            self.waker.poke()

    def close(self, *, is_lost: bool = False) -> None:
        """Stop. What was not started is given back, what is to be said is said.

        Args:
            is_lost: The connection is known to be broken: nothing is sent, the lease thread does the rest once it
                reaches the server again.
        """
        if self.is_closed:
            return
        self._unregister()
        self.ledger.tell_no_more(self.waker.signal)
        tags = set(self.subscriptions)
        known_as = [s.known_as for s in self.subscriptions.values()]
        for name in known_as:
            self.keeper.consumers.pop(name, None)
        if not is_lost and self.session.is_open:
            try:
                self._wind_up(tags, known_as)
            except errors.PgBrokerError:
                is_lost = True
        self.is_closed = True
        self.ledger.retire(tags | {""})
        if is_lost and known_as:
            self.ledger.say(self.routing.depart(self.ledger.worker, known_as))
        self.subscriptions.clear()
        self.session.close()
        if self.listener is not None:
            self.listener.close()
        self.waker.close()
        self.keeper.nudge()

    def _wind_up(self, tags: set[str], known_as: list[str]) -> None:
        self.subscriptions.clear()  # what a claim under way still brings is given back
        if self.session.is_busy:
            self._receive(wait=True)
        self.ledger.retire(tags | {""})
        self.ledger.give_back(0.0)
        self.keeper.say_everything(self.session)
        if known_as:
            self.session.query(*self.routing.depart(self.ledger.worker, known_as))


def _ignore(rows: list[tuple[Any, ...]]) -> None:
    """The answer to a statement that only had to be said."""


def _nothing() -> None:
    """A timer's callback: the loop ticks after it."""
