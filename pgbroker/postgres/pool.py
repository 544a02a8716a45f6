"""The sessions that a process shares for short statements: publishing, declaring, results, monitoring.

A session is lent for one piece of work and given back, so a process never has more of them than it has threads
(or greenlets) talking to the server at the same moment. A worker's main process caps the pool at one.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres import migrate
from pgbroker.postgres.connection import Session

_T = TypeVar("_T")

#: An idle session is closed after so many seconds.
IDLE_SECONDS = 60.0

#: Longest wait for a session when the pool is capped and all are out, in seconds.
LEND_DEADLINE_SECONDS = 30.0


class SessionPool:
    """Lends sessions to one server. Use :func:`pool_for`, which keeps one pool for each ``Options``."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cap: int | None = None
        self._changed = threading.Condition()
        self._idle: list[tuple[float, Session]] = []
        self._lent = 0
        self._closer: threading.Thread | None = None

    @contextlib.contextmanager
    def lend(self, timeout: float = LEND_DEADLINE_SECONDS) -> Iterator[Session]:
        """A connected session on a schema that fits this version, for the ``with`` block.

        Args:
            timeout: Longest wait for a session where the pool is capped and all are out, in seconds.

        Raises:
            DatabaseUnreachable: No connection can be made, or none came back in time.
            SchemaError: The schema is missing, too old or too new, and may not be changed.
        """
        session = self._take(timeout)
        try:
            if not is_alive(session):
                session.close()
            session.connect()
            migrate.ensure_schema(session)
            yield session
        finally:
            self._give_back(session)

    def query(self, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement on a lent session; see :meth:`Session.query`."""
        with self.lend() as session:
            return session.query(sql, args)

    def value(self, sql: str, args: Sequence[Any] = ()) -> Any:
        """The single value that one statement returns."""
        return self.query(sql, args)[0][0]

    def repeat(self, work: Callable[[Session], _T]) -> _T:
        """Do what may be done twice, with a lent session; once more on a new one if the connection broke.

        Raises:
            ConnectionLost: The second one broke, too.
        """
        try:
            with self.lend() as session:
                return work(session)
        except errors.ConnectionLost:
            self.close()  # the idle ones were most likely lost together with this one
            with self.lend() as session:
                return work(session)

    def close(self) -> None:
        """Close the idle sessions. The pool may be used again."""
        with self._changed:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def _take(self, timeout: float) -> Session:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._idle and self.cap is not None and self._lent >= self.cap:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise errors.DatabaseUnreachable(
                        f"all {self.cap} shared connections to Postgres were busy for {timeout:.3g} s"
                    )
            self._lent += 1
            return self._idle.pop()[1] if self._idle else Session(self.options, "client")

    def _give_back(self, session: Session) -> None:
        with self._changed:
            self._lent -= 1
            keep = (
                session.is_open
                and not session.is_busy
                and (self.cap is None or len(self._idle) + self._lent < self.cap)
            )
            if keep:
                self._idle.append((time.monotonic(), session))
                if self._closer is None or not self._closer.is_alive():
                    self._closer = threading.Thread(target=self._close_idle, name="pgbroker-idle", daemon=True)
                    self._closer.start()
            self._changed.notify()
        if not keep:
            session.close()

    def _close_idle(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                old = [session for since, session in self._idle if now - since >= IDLE_SECONDS]
                self._idle = [entry for entry in self._idle if now - entry[0] < IDLE_SECONDS]
                if not self._idle:
                    self._closer = None
                wait = min((since + IDLE_SECONDS - now for since, _ in self._idle), default=None)
            for session in old:
                session.close()
            if wait is None:
                return
            time.sleep(max(0.1, wait))


def is_alive(session: Session) -> bool:
    """Whether an idle session's socket says nothing bad; a look or two, no round trip.

    An idle connection has nothing to read: if there is something, it is the server's farewell, behind which the
    end of the stream lies (or a notice, which :meth:`Session.pump` takes in).
    """
    try:
        while session.is_open:
            poller = select.poll()
            poller.register(session.fileno(), select.POLLIN)
            if not poller.poll(0):
                return True
            session.pump()
    except errors.ConnectionLost:
        pass
    return False


_pools: dict[tuple[Any, ...], SessionPool] = {}
_pools_lock = threading.Lock()


def pool_for(options: Options) -> SessionPool:
    """This process's pool for that server and schema; the same object until the process ends or forks.

    Broker and result backend share a pool where they lead to one database, whatever their other options are.
    """
    key = (options.libpq, options.embedded_dir, options.schema, options.auto_migrate)
    pool = _pools.get(key)
    if pool is None:
        with _pools_lock:
            pool = _pools.setdefault(key, SessionPool(options))
    return pool


def close_all() -> None:
    """Close every idle session of this process."""
    for pool in list(_pools.values()):
        pool.close()


def _after_fork_in_child() -> None:
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
