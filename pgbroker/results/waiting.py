"""Waiting for results: any number of threads, one connection.

A process has one waiting room for each ``Options``. Of the threads (or greenlets) in it one is the reader: it alone
touches the source, and hands what arrives to those who wait for it. When it has got its own, the next one becomes the
reader. So nothing needs a thread of its own, and a single waiter is woken by the socket itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.results.sources import ListeningSource, Poke, PollingSource, Source
from pgbroker.results.store import ResultStore, StoredResult

logger = logging.getLogger(__name__)

#: The connection of a room in which nobody waits is closed after so many seconds.
IDLE_SECONDS = 60.0

#: First and longest pause between two attempts to reach the server, in seconds.
RECONNECT_SECONDS = (0.05, 1.0)


class Wait:
    """What one thread waits for. Made by :meth:`WaitingRoom.enter`."""

    def __init__(self, room: WaitingRoom, task_ids: Iterable[str], *, every_state: bool) -> None:
        self.every_state = every_state
        self.missing = set(task_ids)
        self.arrived: list[StoredResult] = []
        self.changed = threading.Event()
        #: The process in whose waiting room this is, or 0.
        self.pid = 0
        self._room = room

    def take(self, seconds: float) -> list[StoredResult]:
        """What has arrived; waits for the first at most so many seconds.

        Returns:
            Stored states; empty at the time-out. A state on the way may be given more than once.

        Raises:
            DatabaseUnreachable: The server has never been reached by this process.
            DatabaseError: The server refused a statement.
        """
        return self._room.take(self, seconds)


class WaitingRoom:
    """All waits of this process for results of one schema. Use :func:`room_for`.

    Args:
        options: How to wait: ``notify``, ``listen_url``, ``poll_interval``.
        store: Where to look for what is there already.
    """

    def __init__(self, options: Options, store: ResultStore) -> None:
        self._store = store
        self._poke = Poke()
        self._source: Source = (
            ListeningSource(options, self._poke) if options.notify else PollingSource(options, self._poke, store)
        )
        self._lock = threading.Lock()
        self._waits: dict[str, set[Wait]] = {}
        self._fresh: set[str] = set()
        self._parked: dict[Wait, None] = {}
        self._is_read = False
        self._was_reached = False
        self._pause = 0.0
        self._idle_since = 0.0
        self._closer: threading.Thread | None = None

    @contextmanager
    def enter(self, task_ids: Iterable[str], *, every_state: bool = False) -> Iterator[Wait]:
        """Wait for results in the ``with`` block.

        What is there already has arrived at its beginning: one round trip, no registration.

        Args:
            task_ids: The tasks.
            every_state: States on the way are wanted too, not only the end.
        """
        wait = Wait(self, task_ids, every_state=every_state)
        self._look(wait)
        with self._lock:
            self._admit(wait)
        try:
            yield wait
        finally:
            with self._lock:
                for task_id in wait.missing:
                    self._discard(task_id, wait)
                if not self._waits:
                    self._idle_since = time.monotonic()

    def take(self, wait: Wait, seconds: float) -> list[StoredResult]:
        """See :meth:`Wait.take`."""
        deadline = time.monotonic() + seconds
        is_reader = False
        try:
            while True:
                with self._lock:
                    arrived, wait.arrived = wait.arrived, []
                    left = deadline - time.monotonic()
                    if arrived or left <= 0:
                        return arrived
                    self._admit(wait)
                    if wait.missing and not self._is_read:
                        is_reader = True
                        self._is_read = True
                        self._parked.pop(wait, None)
                        self._poke.open()
                    elif not is_reader:
                        wait.changed.clear()
                        if wait.missing:
                            self._parked[wait] = None
                            if not self._fresh.isdisjoint(wait.missing):
                                self._poke()
                if is_reader:
                    self._read(left)
                else:
                    wait.changed.wait(left)
        finally:
            with self._lock:
                if is_reader:
                    self._is_read = False
                self._parked.pop(wait, None)
                self._appoint()

    def forget_parent(self) -> None:
        """Make the room of a forked child its own: the parent's threads are not here, its connection is not ours."""
        self._lock = threading.Lock()
        self._poke.close()
        self._source.forget_parent()
        self._waits.clear()
        self._fresh.clear()
        self._parked.clear()
        self._is_read = False
        self._closer = None

    def _look(self, wait: Wait) -> None:
        if not wait.missing:
            return
        try:
            rows = self._store.get(wait.missing)
        except errors.DatabaseUnreachable:
            if not self._was_reached:
                raise
            return
        self._was_reached = True
        for row in rows:
            if row.is_ready or wait.every_state:
                wait.arrived.append(row)
            if row.is_ready:
                wait.missing.discard(row.task_id)

    def _admit(self, wait: Wait) -> None:
        """Take a wait in unless it is in already. Called with the lock held."""
        if wait.pid != os.getpid():
            wait.pid = os.getpid()
            for task_id in wait.missing:
                self._waits.setdefault(task_id, set()).add(wait)
                self._fresh.add(task_id)

    def _read(self, seconds: float) -> None:
        """One turn of the reader."""
        with self._lock:
            wanted = {task_id: any(w.every_state for w in waits) for task_id, waits in self._waits.items()}
            fresh = {task_id: wanted[task_id] for task_id in self._fresh if task_id in wanted}
            self._fresh.clear()
        self._start_closer()
        is_done = False
        try:
            rows = self._source.read(wanted, fresh, seconds)
            is_done = True
        except errors.DatabaseUnreachable as exc:
            if not self._was_reached:
                raise
            if not self._pause:
                logger.warning("lost the connection for results, trying again: %s", exc)
            self._pause = min(max(2 * self._pause, RECONNECT_SECONDS[0]), RECONNECT_SECONDS[1])
            self._poke.wait(min(seconds, self._pause))
            return
        finally:
            if not is_done:
                with self._lock:
                    self._fresh.update(task_id for task_id in fresh if task_id in self._waits)
        self._was_reached, self._pause = True, 0.0
        self._hand_out(rows)

    def _hand_out(self, rows: Iterable[StoredResult]) -> None:
        with self._lock:
            for row in rows:
                for wait in list(self._waits.get(row.task_id, ())):
                    if row.is_ready:
                        wait.missing.discard(row.task_id)
                        self._discard(row.task_id, wait)
                    elif not wait.every_state:
                        continue
                    wait.arrived.append(row)
                    wait.changed.set()

    def _discard(self, task_id: str, wait: Wait) -> None:
        waits = self._waits.get(task_id)
        if waits is not None:
            waits.discard(wait)
            if not waits:
                del self._waits[task_id]
                self._fresh.discard(task_id)

    def _appoint(self) -> None:
        """Let one of those who wait become the reader if there is none. Called with the lock held."""
        if not self._is_read:
            for wait in self._parked:
                wait.changed.set()
                return

    def _start_closer(self) -> None:
        if self._closer is None or not self._closer.is_alive():
            self._closer = threading.Thread(target=self._close_when_idle, name="pgbroker-results-idle", daemon=True)
            self._closer.start()

    def _close_when_idle(self) -> None:
        while True:
            with self._lock:
                left = IDLE_SECONDS
                if not self._waits and not self._is_read:
                    left -= time.monotonic() - self._idle_since
                if left <= 0:
                    self._is_read = True  # nobody else touches the source meanwhile
                    self._closer = None
                    break
            time.sleep(left)
        try:
            self._source.close()
        finally:
            with self._lock:
                self._is_read = False
                self._appoint()


_rooms: dict[tuple[Options, Options], WaitingRoom] = {}
_rooms_lock = threading.Lock()


def room_for(options: Options, store: ResultStore) -> WaitingRoom:
    """This process's waiting room; a forked child has another."""
    key = (options, store.options)
    room = _rooms.get(key)
    if room is None:
        with _rooms_lock:
            room = _rooms.get(key)
            if room is None:
                room = _rooms[key] = WaitingRoom(options, store)
    return room


def _after_fork_in_child() -> None:
    global _rooms_lock
    _rooms_lock = threading.Lock()
    for room in _rooms.values():
        room.forget_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
