"""One session and the statement in flight on it: said at one time, answered at another, by an event loop or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres import migrate
from pgbroker.postgres.connection import STATEMENT_DEADLINE_SECONDS, Session
from pgbroker.queue.store import Call


class Saying(NamedTuple):
    """A statement, and who wants to know what became of it.

    Attributes:
        done: Called with the rows.
        failed: Called with the error instead.
    """

    call: Call
    done: Callable[[list[tuple[Any, ...]]], None] | None = None
    failed: Callable[[errors.PgBrokerError], None] | None = None


class Conversation:
    """Whatever is said is answered, by its rows or by an error, also when the connection is given up meanwhile.

    Args:
        options: The broker.
        on_timeout: Called after the server has ended a statement for its ``statement_timeout``, which breaks nothing.
    """

    def __init__(self, options: Options, on_timeout: Callable[[], None]) -> None:
        self.session = Session(options, "consume")
        self._on_timeout = on_timeout
        self._saying: Saying | None = None
        self._said_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether an answer is awaited."""
        return self.session.is_busy

    @property
    def overdue_at(self) -> float:
        """When the connection counts as lost unless the answer is there, on the monotonic clock."""
        return self._said_at + STATEMENT_DEADLINE_SECONDS

    def connect(self) -> bool:
        """Open the session unless it is open. Returns whether it was opened, so that nothing is listened to yet."""
        if self.session.is_open:
            return False
        self.session.connect()
        migrate.ensure_schema(self.session)
        return True

    def say(self, saying: Saying) -> None:
        """Send a statement; :meth:`hear` takes the answer."""
        self._saying, self._said_at = saying, time.monotonic()
        try:
            self.session.send(*saying.call)
        except errors.PgBrokerError as exc:
            self.fail(exc)
        except BaseException:  # the same for what was being sent
            self.close()
            raise

    def hear(self, *, wait: bool) -> None:
        """Take what the socket has, and the answer if it is complete; ``wait``: until it is."""
        try:
            is_complete = wait or self.session.pump()
            rows = self.session.receive() if is_complete and self.session.is_busy else None
        except errors.PgBrokerError as exc:
            self.fail(exc)
            return
        except BaseException:  # Ctrl-C, a killed greenlet: whether the answer was taken is not known
            self.close()
            raise
        if rows is None:
            return
        saying, self._saying = self._saying, None
        if saying is not None and saying.done is not None:
            saying.done(rows)

    def fail_if_overdue(self) -> None:
        """Give a connection up that has been silent for too long."""
        if self.session.is_busy and time.monotonic() > self.overdue_at:
            self.fail(errors.ConnectionLost(f"no answer from Postgres within {STATEMENT_DEADLINE_SECONDS:g} s"))

    def fail(self, exc: errors.PgBrokerError) -> None:
        """Tell whoever awaits the answer, and raise what makes the owner connect again."""
        self._tell_of(exc)
        if isinstance(exc, errors.StatementTimeout):
            self._on_timeout()
            return
        self.session.close()
        if isinstance(exc, errors.DatabaseUnreachable):
            raise exc
        raise errors.ConnectionLost(f"the server refused a statement of the consumer: {exc}") from exc

    def close(self) -> None:
        """End it. What is in flight, where somebody else noticed that the connection is lost, has failed."""
        self._tell_of(errors.ConnectionLost("the connection was closed"))
        self.session.close()

    def _tell_of(self, exc: errors.PgBrokerError) -> None:
        saying, self._saying = self._saying, None
        if saying is not None and saying.failed is not None:
            saying.failed(exc)
