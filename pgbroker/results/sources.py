"""Where a waiting process learns that results have arrived: from NOTIFY, or by asking again and again.

A source is used by one thread at a time, the reader of a :class:`~pgbroker.results.waiting.WaitingRoom`. The others
interrupt its wait with a :class:`Poke` when they want something else to be waited for.
"""

from __future__ import annotations

import os
import secrets
import select
import time
from collections.abc import Mapping
from typing import Protocol

from pgbroker.options import Options
from pgbroker.postgres.connection import Session
from pgbroker.results.store import ResultStore, StoredResult, calls_for, read_arrays, read_rows

#: Longest uninterrupted wait on a socket, in seconds. A connection that another thread closes does not end it.
TURN_SECONDS = 1.0

#: First and longest pause between two looks without NOTIFY, in seconds; ``poll_interval`` may be shorter.
POLL_SECONDS = (0.02, 0.5)

#: Longest wait for the answer to one statement, in seconds.
ANSWER_SECONDS = 15.0

Wanted = Mapping[str, bool]
"""Task ids that are waited for, and whether their states on the way are wanted too."""


class Poke:
    """A pipe that ends another thread's wait. Opened by who waits, before anybody may want to end it."""

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None

    def open(self) -> None:
        """Open the pipe unless it is open."""
        if self._pipe is None:
            self._pipe = os.pipe()
            for fd in self._pipe:
                os.set_blocking(fd, False)

    def __call__(self) -> None:
        """End the wait, or the next one. Never blocks."""
        if self._pipe is not None:
            try:
                os.write(self._pipe[1], b"\0")
            except BlockingIOError:
                pass

    def wait(self, seconds: float, fd: int | None = None) -> None:
        """Wait for a poke, or until ``fd`` is readable, at most so many seconds."""
        assert self._pipe is not None, "open() comes first"
        read = self._pipe[0]
        poller = select.poll()
        poller.register(read, select.POLLIN)
        if fd is not None:
            poller.register(fd, select.POLLIN)
        if any(ready == read for ready, _ in poller.poll(max(0.0, seconds) * 1000)):
            os.read(read, 4096)

    def close(self) -> None:
        """Close the pipe; it may be opened again."""
        pipe, self._pipe = self._pipe, None
        for fd in pipe or ():
            os.close(fd)


class Source(Protocol):
    """What a reader asks for results."""

    def read(self, wanted: Wanted, fresh: Wanted, seconds: float) -> list[StoredResult]:
        """What has arrived of the wanted results; waits for some, or for a poke, at most ``seconds``.

        Args:
            wanted: All that is waited for.
            fresh: The part of it that the source has not been told of yet.
            seconds: Longest wait.

        Raises:
            DatabaseUnreachable: No connection; call again.
        """

    def close(self) -> None:
        """Close the connection; the next read opens another."""

    def forget_parent(self) -> None:
        """In a forked child: be another listener than the parent is."""


class _ListeningSession(Session):
    def take_payloads(self) -> list[str]:
        """What came with the notifications since the last call."""
        if self._connection is None or not self._connection.notifies:
            return []
        payloads = [notify.payload for notify in self._connection.notifies]
        del self._connection.notifies[:]
        return payloads


class ListeningSource:
    """Registers for results in the database and is notified of each by its task id.

    NOTIFY may be lost, with the connection or a crash of the server: everything wanted is registered again, and
    thereby looked up, after each reconnect and every ``poll_interval`` seconds.
    """

    def __init__(self, options: Options, poke: Poke) -> None:
        self._session = _ListeningSession(options.listen_options() or options, "results")
        self._calls = calls_for(options.schema)
        self._poke = poke
        self._channel = _new_channel()
        self._interval = options.poll_interval
        self._is_listening = False
        self._check_at = 0.0

    def read(self, wanted: Wanted, fresh: Wanted, seconds: float) -> list[StoredResult]:
        """See :meth:`Source.read`."""
        try:
            if not (self._is_listening and self._session.is_open):
                self._is_listening = False
                self._session.query(f'listen "{self._channel}"', timeout=ANSWER_SECONDS)
                self._is_listening, self._check_at = True, 0.0
            rows: list[StoredResult] = []
            now = time.monotonic()
            if now >= self._check_at:
                rows = self._register(wanted)
                self._check_at = now + self._interval
            elif fresh:
                rows = self._register(fresh)
            rows += self._take(wanted)
            if rows:
                return rows
            self._poke.wait(min(seconds, self._check_at - now, TURN_SECONDS), self._session.fileno())
            return self._take(wanted)
        finally:
            if self._session.is_busy:  # interrupted from outside, by a signal or a greenlet's time-out
                self._session.close()

    def close(self) -> None:
        """See :meth:`Source.close`."""
        self._session.close()

    def forget_parent(self) -> None:
        """See :meth:`Source.forget_parent`; the session itself sees that it was inherited."""
        self._channel = _new_channel()

    def _register(self, wanted: Wanted) -> list[StoredResult]:
        call = self._calls.await_results(wanted, self._channel, 2 * self._interval + ANSWER_SECONDS)
        return read_arrays(self._session.query(*call, timeout=ANSWER_SECONDS))

    def _take(self, wanted: Wanted) -> list[StoredResult]:
        """What has been notified; afterwards no notification is left that the socket would not tell of."""
        rows: list[StoredResult] = []
        while True:
            # Notifications that came along with an answer do not make the socket readable again, and some lie in
            # libpq, which hands them on when it is asked for the next answer.
            self._session.pump()
            named = set(self._session.take_payloads())
            if not named:
                return rows
            if "" in named:  # an id too long to travel, or one that leads elsewhere from now on
                rows += self._register(wanted)
                continue
            ids = [task_id for task_id in named if task_id in wanted]
            if ids:
                rows += read_rows(self._session.query(*self._calls.get(ids), timeout=ANSWER_SECONDS))


class PollingSource:
    """Asks for all wanted results in growing intervals, for servers where NOTIFY does not reach us."""

    def __init__(self, options: Options, poke: Poke, store: ResultStore) -> None:
        self._store = store
        self._poke = poke
        self._longest = min(POLL_SECONDS[1], options.poll_interval)
        self._pause = POLL_SECONDS[0]

    def read(self, wanted: Wanted, fresh: Wanted, seconds: float) -> list[StoredResult]:
        """See :meth:`Source.read`."""
        if fresh:
            self._pause = POLL_SECONDS[0]
        self._poke.wait(min(seconds, self._pause))
        self._pause = min(self._pause * 1.5, self._longest)
        return self._store.get(wanted)

    def close(self) -> None:
        """See :meth:`Source.close`; the sessions belong to the pool."""

    def forget_parent(self) -> None:
        """See :meth:`Source.forget_parent`; there is nothing to forget."""


def _new_channel() -> str:
    return f"pgbw_{secrets.token_hex(8)}"
