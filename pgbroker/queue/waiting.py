"""Waiting until a job of some queues can be claimed: LISTEN, register as a sleeper, look, and only then sleep.

In this order nothing is missed: a publish that commits before the registration is found by the look, one that commits
after it notifies. Between notifications it looks again at the latest after ``poll_interval``, so that a notification
that got lost (a pooler in between, a server that failed over) costs no more than that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres.listen import Listener
from pgbroker.postgres.pool import pool_for
from pgbroker.queue.job_calls import job_calls_for
from pgbroker.queue.store import store_for

#: Longest sleep between two looks, in seconds, whatever ``poll_interval`` says: publishing a job that is due later than
#: this wakes nobody, because whoever sleeps looks again before.
NAP_MAX_SECONDS = 10.0

#: First and longest pause before connecting again, in seconds.
RECONNECT_FIRST_SECONDS = 0.05
RECONNECT_MAX_SECONDS = 1.0


class Waiter:
    """Waits for one thread at a time; keeps its connection in between.

    Args:
        options: Which server; ``notify``, ``listen_url`` and ``poll_interval`` say how to wait.
        closing: Ends every wait when it is set; call :meth:`wake` then.
    """

    def __init__(self, options: Options, closing: threading.Event) -> None:
        self._options = options
        self._closing = closing
        self._store = store_for(options.schema)
        self._calls = job_calls_for(options.schema)
        self._listener = Listener(options) if options.notify else None
        self._channels: tuple[list[str], list[str]] = ([], [])
        self._is_registered = False

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        """Wait until a job of these queues is ready.

        Args:
            queues: Names of queues.
            timeout: Longest wait in seconds.

        Returns:
            ``True`` as soon as one is ready, ``False`` at the time-out or when the waiter closes.

        Raises:
            DatabaseUnreachable: There was no connection at the time-out. Until then a lost one is made again.
        """
        deadline = time.monotonic() + timeout
        pause = RECONNECT_FIRST_SECONDS
        while True:
            try:
                return self._watch(list(queues), deadline)
            except errors.DatabaseUnreachable:
                left = deadline - time.monotonic()
                if left <= 0 or self._closing.wait(min(pause, left)):
                    raise
                pause = min(2 * pause, RECONNECT_MAX_SECONDS)

    def _watch(self, queues: list[str], deadline: float) -> bool:
        nap = min(self._options.poll_interval, NAP_MAX_SECONDS)
        try:
            while not self._closing.is_set():
                left = deadline - time.monotonic()
                is_last = left <= 0
                if is_last:
                    self._deregister()
                else:
                    self._register(queues, 2 * nap)
                # a look of its own: the registration's look does not see what was committed while it was going on
                due, is_ready = self._look(queues, nap)
                if is_ready:
                    return True
                if is_last:
                    return False
                self._sleep(min(left, nap) if due is None else min(left, nap, max(due, 0.001)))
            return False
        finally:
            with suppress(errors.PgBrokerError):
                self._deregister()

    def _register(self, queues: list[str], seconds: float) -> None:
        if self._listener is None:
            return
        if self._channels[0] != queues:
            # on the listener's own session: the pool's may be all lent
            self._listener.open()
            rows = self._listener.session.query(*self._store.queue_channels(queues))
            self._channels = (queues, [str(row[0]) for row in rows])
        self._listener.open(self._channels[1])
        self._is_registered = True
        self._listener.session.query(*self._store.doze(queues, self._listener.channel, seconds))

    def _deregister(self) -> None:
        if not self._is_registered or self._listener is None:
            return
        self._is_registered = False
        if self._listener.session.is_open:
            self._listener.session.query(*self._calls.rise(self._listener.channel))
            self._listener.wait(0)

    def _look(self, queues: list[str], seconds: float) -> tuple[float | None, bool]:
        """Seconds until the next job is due, if that is within ``seconds``, and whether one is ready now."""
        call = self._store.doze(queues, None, seconds)
        if self._listener is None or not self._listener.session.is_open:
            rows = pool_for(self._options).query(*call)
        else:
            rows = self._listener.session.query(*call)
        due, is_ready, _ = rows[0]
        return due, bool(is_ready)

    def _sleep(self, seconds: float) -> None:
        if self._listener is None:
            self._closing.wait(seconds)
        else:
            self._listener.wait(seconds)

    def wake(self) -> None:
        """End the wait of another thread after ``closing`` was set."""
        if self._listener is not None and self._listener.channel:
            with suppress(errors.PgBrokerError):
                pool_for(self._options).query(*self._calls.nudge(self._listener.channel))

    def close(self) -> None:
        """Close the connection."""
        if self._listener is not None:
            self._listener.close()


class Waiters:
    """Waits for any number of threads: one :class:`Waiter`, so one connection, for each that waits at the same moment.

    Args:
        options: Which server, and how to wait.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._closing = threading.Event()
        # list operations are atomic, and a fork cannot leave them locked
        self._idle: list[Waiter] = []
        self._busy: list[Waiter] = []

    def wait(self, queues: Sequence[str], timeout: float) -> bool:
        """Wait until a job of these queues is ready; see :meth:`Waiter.wait`."""
        try:
            waiter = self._idle.pop()
        except IndexError:
            waiter = Waiter(self._options, self._closing)
        self._busy.append(waiter)
        try:
            return waiter.wait(queues, timeout)
        finally:
            self._busy.remove(waiter)
            self._idle.append(waiter)
            if self._closing.is_set():
                self._close_idle()
                pool_for(self._options).close()  # it may have lent us a session while it was being closed

    def close(self) -> None:
        """End all waits, and close their connections as they end."""
        self._closing.set()
        for waiter in list(self._busy):
            waiter.wake()
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return
