"""The thread that keeps a process's claims alive, with a connection of its own.

It renews every lease before half of it is gone and goes on while a task hogs the CPU or the main thread waits for
the pool to drain; it takes back what dead workers held; it says what the consumer's pump can no longer say (late
acks during a shutdown); and it keeps the process's consumers and transient queues on the books. What else has to be
done now and then, and can wait, is a :class:`Chore`.

With nothing held it renews nothing. It opens its connection when it first has something to do.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import Any, Protocol

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres import migrate, native
from pgbroker.postgres.connection import Session
from pgbroker.queue.alarm import Alarm
from pgbroker.queue.declarations import Declarations
from pgbroker.queue.ledger import Ledger
from pgbroker.queue.routing import Routing, routing_for
from pgbroker.queue.store import Call, Store, store_for

logger = logging.getLogger(__name__)

#: The pump normally speaks within milliseconds; what is older than this is said by the lease thread.
STALE_NEWS_SECONDS = 0.25

#: The same where a task may keep the pump from speaking at all.
SOON_SECONDS = 0.01

#: After a consumer is cancelled, a task may still be on its way into a pool process for so long.
GIVE_BACK_GRACE_SECONDS = 1.0

#: Longest pause between two attempts to reach the server.
MAX_RETRY_SECONDS = 5.0


class Chore(Protocol):
    """Something that the lease thread does now and then.

    Attributes:
        at: When it is due, on the monotonic clock.
    """

    at: float

    def run(self, keeper: LeaseKeeper) -> None:
        """Do it, with statements by :meth:`LeaseKeeper.query`, and set :attr:`at` anew."""

    def on_notified(self) -> None:
        """The thread's connection was notified."""

    def on_disconnected(self) -> None:
        """The thread's connection is gone."""


class LeaseKeeper:
    """Keeps the leases of one :class:`Ledger`.

    Args:
        options: The broker.
        ledger: What the process holds.
    """

    def __init__(self, options: Options, ledger: Ledger) -> None:
        self.options = options
        self.ledger = ledger
        self.store: Store = store_for(options.schema)
        self.routing: Routing = routing_for(options.schema)
        #: Consumer tag -> queue, of this process; kept on the books with ``attend()``.
        self.consumers: dict[str, str] = {}
        #: Transient queues of this process, kept alive without a consumer.
        self.kept_queues: set[str] = set()
        #: What of theirs may be swept away while this process is suspended.
        self.declarations = Declarations()
        self.chores: tuple[Chore, ...] = ()
        #: A job that was fetched and not taken up for so long goes back; set in a worker, which fetches ahead.
        self.most_waiting_seconds = float("inf")
        self._stale_news_seconds = STALE_NEWS_SECONDS
        self._session = Session(options, "lease", is_native=True)
        self._alarm = Alarm()
        self._lock, self._running = native.new_lock(), native.new_lock()
        #: Stands for the thread that runs; ``None``: none shall.
        self._run_token: object | None = None
        self._renew_at = self._attend_at = self._reap_at = 0.0

    def start(self) -> None:
        """Start the thread unless it runs; from any thread."""
        with self._lock:
            if self._run_token is not None:
                return
            self._run_token = token = object()
        now = time.monotonic()
        self._renew_at = now + self._renew_interval
        self._attend_at = now + self._attend_interval
        self._reap_at = now + self.options.reap_interval * random.uniform(0.5, 1.0)
        native.start_thread(self._run, token)

    def stop(self, *, wait_seconds: float = 0.0) -> None:
        """Let the thread end and close its connection.

        What it is at may fail from now on, and it says nothing about that: an embedded server goes with its last user.

        Args:
            wait_seconds: Longest wait for its end.
        """
        self._run_token = None
        self.nudge()
        if wait_seconds and self._running.acquire(timeout=wait_seconds):
            self._running.release()

    def nudge(self) -> None:
        """Let the thread look around now."""
        self._alarm.ring()

    def dismiss(self, known_as: str) -> None:
        """A consumer is no more."""
        queue = self.consumers.pop(known_as, None)
        if queue is not None and queue not in list(self.consumers.values()):
            self.declarations.no_consumer(queue)

    def take_on(self, *chores: Chore) -> None:
        """Do these from now on."""
        self.chores += chores
        self.nudge()

    def tell_soon(self) -> None:
        """Say news within milliseconds, where whoever else would say them may be kept from it by a task."""
        self._stale_news_seconds = SOON_SECONDS
        self.ledger.tell(self.nudge)

    @property
    def attend_seconds(self) -> float:
        """How long a consumer counts as alive without a sign of life."""
        return max(self.options.lease_seconds, 10.0)

    @property
    def _renew_interval(self) -> float:
        return self.options.lease_seconds / 3

    @property
    def _attend_interval(self) -> float:
        return self.attend_seconds / 3

    def _run(self, token: object) -> None:
        with self._running:
            self._keep_on(token)

    def _keep_on(self, token: object) -> None:
        retry_seconds = 0.0
        while self._run_token is token:
            try:
                fileno = self._session.fileno() if self._session.is_open else None
                self._alarm.sleep(max(0.005, retry_seconds or self._pause()), fileno)
                if self._run_token is not token:
                    break
                self._look_around()
                self._listen()
                retry_seconds = 0.0
            except errors.PgBrokerError as exc:
                if self._run_token is not token:
                    break
                self._session.close()
                for chore in self.chores:
                    chore.on_disconnected()
                if not retry_seconds:
                    logger.warning("the lease thread lost its connection, trying again: %s", exc)
                retry_seconds = min(MAX_RETRY_SECONDS, max(0.1, retry_seconds * 2)) * random.uniform(0.7, 1.0)
                # after an outage every lease has run out: let those who live renew theirs first
                self._reap_at = max(self._reap_at, time.monotonic() + self.options.lease_seconds)
                self._renew_at = 0.0
            except Exception:  # a lease thread that dies silently would let every lease run out
                logger.exception("error in the lease thread, which goes on")
                retry_seconds = MAX_RETRY_SECONDS
        self._session.close()

    def _pause(self) -> float:
        """Seconds until something is due."""
        due = [self._reap_at, self._attend_at, *(chore.at for chore in self.chores)]
        if len(self.ledger):
            due.append(self._renew_at)
        pause = min(due) - time.monotonic()
        if (news_age := self.ledger.news_age) is not None:
            pause = min(pause, self._stale_news_seconds - news_age)
        if self.ledger.has_retired:
            pause = min(pause, GIVE_BACK_GRACE_SECONDS / 4)
        # News may come up at any moment and stay unsaid, where the pump has stopped or a solo pool hogs its thread.
        return min(pause, STALE_NEWS_SECONDS) if len(self.ledger) else pause

    def _look_around(self) -> None:
        self._keep_leases(time.monotonic())
        if time.monotonic() >= self._reap_at:
            self._reap()
            self._reap_at = time.monotonic() + self.options.reap_interval
        for chore in self.chores:
            if time.monotonic() >= chore.at:
                self._do(chore)

    def _listen(self) -> None:
        """Also what arrived together with an answer: the socket does not become readable for it again."""
        if self._session.take_notifications():
            for chore in self.chores:
                chore.on_notified()

    def _do(self, chore: Chore) -> None:
        chore.at = time.monotonic() + MAX_RETRY_SECONDS  # unless it says otherwise
        try:
            chore.run(self)
        except (errors.DatabaseUnreachable, errors.SchemaError):
            raise
        except errors.PgBrokerError as exc:
            if self._run_token is None:
                raise
            logger.warning("%s failed and will be tried again: %s", type(chore).__name__, exc)

    def _keep_leases(self, now: float) -> None:
        self.ledger.give_back(GIVE_BACK_GRACE_SECONDS, self.most_waiting_seconds)
        age = self.ledger.news_age
        if age is not None and age >= self._stale_news_seconds:
            self.say_everything(self._connected())
        if now >= self._renew_at:
            if claims := self.ledger.claims():
                self._query(self.store.renew(self.ledger.worker, self.options.lease_seconds, claims))
            self._renew_at = time.monotonic() + self._renew_interval
        if now >= self._attend_at:
            if self.consumers or self.kept_queues:
                self._attend()
            self._attend_at = time.monotonic() + self._attend_interval

    def _attend(self) -> None:
        """Keep consumers and queues on the books; declare and bind anew what was swept away."""
        in_use = {*self.consumers.values(), *self.kept_queues}  # before the look: what comes later is not looked for
        missing = self.declarations.missing(in_use, dict(self._query(self.attend_call())))
        if not missing:
            return
        for calls in missing.values():
            for call in calls:
                self._query(call)
        self._query(self.attend_call())
        logger.warning("declared again what had gone while this process was not heard of: %s", ", ".join(missing))

    def attend_call(self) -> Call:
        """The statement that says which consumers and queues of this process are alive."""
        consumers = dict(self.consumers)
        return self.routing.attend(
            self.ledger.worker, list(consumers), list(consumers.values()), list(self.kept_queues), self.attend_seconds
        )

    def _reap(self) -> None:
        for job_id, status in self._query(self.store.reap()):
            logger.warning("took back job %s whose worker let its lease run out: now %s", job_id, status)
        self._query(self.routing.sweep_transient())

    def say_everything(self, session: Session) -> None:
        """Settle all that the ledger has to say, and wait for it."""
        report = self.ledger.take_report()
        try:
            if report:
                session.query(*self.store.settle(report))
        except BaseException:
            self.ledger.return_report(report)
            raise
        self.ledger.said(report)
        while (call := self.ledger.take_call()) is not None:
            try:
                session.query(*call)
                self.ledger.call_said(call)
            except BaseException as exc:
                self.ledger.refused(call, exc)
                if not isinstance(exc, errors.DatabaseError) or isinstance(exc, errors.StatementTimeout):
                    raise

    def query(self, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement of a chore, after what the leases need: a long chore must not let them run out."""
        self._keep_leases(time.monotonic())
        return self._query((sql, tuple(args)))

    def _query(self, call: Call) -> list[tuple[Any, ...]]:
        return self._connected().query(*call)

    def _connected(self) -> Session:
        self._session.connect()
        migrate.ensure_schema(self._session)
        return self._session
