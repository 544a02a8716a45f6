"""What a process has to say to the server about its claims, gathered until somebody says it.

Acks and outcomes arrive from many places: the event loop, pool threads, greenlets, the result handler during a
shutdown. They are written down here and return at once; whoever talks to the server next (the consumer's pump, or
the lease thread if the pump has stopped) takes the lot.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable

from pgbroker import errors
from pgbroker.postgres import native
from pgbroker.queue.store import Call, Report

logger = logging.getLogger(__name__)


class Outgoing:
    """All methods may be called from any thread or greenlet.

    Attributes:
        on_news: Called (from any thread) when there is something to say; must only signal. Under gevent a worker
            has several connections that consume, so there may be several.
    """

    def __init__(self) -> None:
        self.on_news: tuple[Callable[[], None], ...] = ()
        self._lock = native.new_lock()
        self._report = Report()
        self._being_said: set[int] = set()
        self._calls: list[Call] = []
        #: Which claims a statement ends, by its identity, from when it is written down until it is said.
        self._ended_by: dict[int, tuple[int, ...]] = {}
        self._news_at: float | None = None

    def tell(self, on_news: Callable[[], None]) -> None:
        """Call this whenever there is something to say."""
        with self._lock:
            if on_news not in self.on_news:
                self.on_news += (on_news,)

    def tell_no_more(self, on_news: Callable[[], None]) -> None:
        """Forget what :meth:`tell` was given."""
        with self._lock:
            self.on_news = tuple(known for known in self.on_news if known != on_news)

    def say(self, call: Call) -> None:
        """Have a statement sent that needs no answer."""
        with self._lock:
            self._write_down(call)
        self._news()

    def _write_down(self, call: Call, claims: Iterable[int] = ()) -> None:
        """For who holds the lock. ``claims``: those that it ends."""
        self._calls.append(call)
        self._ended_by[id(call)] = tuple(claims)

    def unsaid_ends(self) -> list[int]:
        """The claims whose ends the server does not know of yet; for who holds the lock."""
        return [*self._report.done_claims, *self._being_said, *itertools.chain(*list(self._ended_by.values()))]

    @property
    def news_age(self) -> float | None:
        """Seconds since the oldest thing that is still to be said; ``None``: nothing is."""
        at = self._news_at
        return None if at is None else time.monotonic() - at

    @property
    def has_calls(self) -> bool:
        """Whether there is something to say that does not fit into a report."""
        return bool(self._calls)

    def take_report(self) -> Report:
        """Starts and ends to be settled; the caller says :meth:`said`, or :meth:`return_report` if that failed."""
        with self._lock:
            report, self._report = self._report, Report()
            self._being_said.update(report.done_claims)
            if not self._calls:
                self._news_at = None
            return report

    def said(self, report: Report) -> None:
        """The server has taken the report."""
        with self._lock:
            self._being_said.difference_update(report.done_claims)

    def return_report(self, report: Report) -> None:
        """Put back a report whose statement failed; settling twice is harmless, a settled claim matches nothing."""
        with self._lock:
            self._being_said.difference_update(report.done_claims)
            report.extend(self._report)
            self._report = report
            self._news_at = self._news_at or time.monotonic()

    def take_call(self) -> Call | None:
        """The next statement that is no report, or ``None``; the caller says :meth:`call_said` or :meth:`refused`."""
        with self._lock:
            call = self._calls.pop(0) if self._calls else None
            if not self._calls and not self._report:
                self._news_at = None
            return call

    def call_said(self, call: Call) -> None:
        """The server has carried the statement out."""
        with self._lock:
            self._ended_by.pop(id(call), None)

    def refused(self, call: Call, exc: BaseException) -> None:
        """A statement failed: it is tried again, unless the server will refuse it each time.

        What is dropped concerns one job, whose lease then runs out, so that it is taken back.
        """
        if isinstance(exc, errors.DatabaseError) and not isinstance(exc, errors.StatementTimeout):
            logger.error("the server refused to settle a job, whose lease will run out: %s", exc)
            self.call_said(call)
            return
        with self._lock:
            self._calls.insert(0, call)
            self._news_at = self._news_at or time.monotonic()

    def _news(self) -> None:
        if self._news_at is None:
            self._news_at = time.monotonic()
        self.signal()

    def signal(self) -> None:
        """Interrupt the waits of those who consume; from any thread."""
        for signal in self.on_news:
            signal()
