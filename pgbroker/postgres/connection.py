"""One session with the server: the only place that touches psycopg2.

Every session uses psycopg2's asynchronous mode, for three reasons. The worker's event loop can send a
statement, go on delivering messages, and read the answer when the socket becomes readable, so that a commit's
fsync costs the worker no time. Every wait is our own ``poll()`` with a deadline, so that a frozen server or a
proxy that says nothing cannot hang a process for ever. And under gevent the same ``poll()`` yields to other
greenlets, with no process-wide hook that would change the application's own connections.

Asynchronous sessions are always in autocommit mode, which is what the broker wants: one statement, one commit.

Source: psycopg2 documentation, "Asynchronous support"; libpq, "Asynchronous Command Processing".
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import psycopg2
import psycopg2.errorcodes as codes
import psycopg2.extensions as ext

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres import native

#: Longest wait for the answer to one statement, in seconds. Our statements take milliseconds; the wait is
#: there so that a server that keeps the connection open and says nothing is recognised as lost.
STATEMENT_DEADLINE_SECONDS = 60.0

_LOST_STATES = frozenset({codes.ADMIN_SHUTDOWN, codes.CRASH_SHUTDOWN, codes.CANNOT_CONNECT_NOW, "57P04", "57P05"})
#: A server that became a standby after a failover, or was told to refuse writes, is no use to a broker.
_READ_ONLY_STATE = codes.READ_ONLY_SQL_TRANSACTION
#: Of ours, once the schema has been looked at, something can only be missing if it was dropped or changed since.
_GONE_STATES = frozenset({codes.INVALID_SCHEMA_NAME, codes.UNDEFINED_TABLE, codes.UNDEFINED_FUNCTION})

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def map_error(exc: psycopg2.Error, *, is_closed: bool) -> errors.PgBrokerError:
    """The member of our own tree that tells a caller what to do about a driver error.

    Args:
        exc: What psycopg2 raised. Its text comes from libpq or the server and holds no password.
        is_closed: Whether the connection is unusable afterwards.
    """
    text = " ".join(str(exc).split()) or type(exc).__name__
    state = exc.pgcode
    if state in _LOST_STATES or state == _READ_ONLY_STATE or (state or "").startswith("08"):
        return errors.ConnectionLost(text)
    if state is None and (is_closed or isinstance(exc, psycopg2.OperationalError | psycopg2.InterfaceError)):
        return errors.ConnectionLost(text)
    if state == codes.INSUFFICIENT_PRIVILEGE:
        return errors.PermissionDenied(text, sqlstate=state)
    # a deadlock's victim and a serialization failure, too, are to be tried again later
    if state in (codes.QUERY_CANCELED, codes.LOCK_NOT_AVAILABLE, codes.DEADLOCK_DETECTED, codes.SERIALIZATION_FAILURE):
        return errors.StatementTimeout(text, sqlstate=state)
    return errors.DatabaseError(text, sqlstate=state)


class Session:
    """A connection to the server of ``options``, opened on first use; safe to share between threads.

    Args:
        options: Where to connect, and how.
        purpose: One word for ``application_name``, so that ``pg_stat_activity`` says what a backend is for.
        is_native: The session belongs to a real thread, also where gevent has patched the process.
    """

    def __init__(self, options: Options, purpose: str = "client", *, is_native: bool = False) -> None:
        self.options = options
        self.purpose = purpose
        self.lock = native.original("threading", "RLock")() if is_native else threading.RLock()
        self._poll = native.original("select", "poll") if is_native else select.poll
        self._connection: Any = None
        self._cursor: Any = None
        self._in_flight = False
        self._pid = 0
        #: Whether the schema was seen to be there and to fit, see :func:`pgbroker.postgres.migrate.ensure_schema`.
        self.has_schema = False
        _sessions.add(self)

    # -- life ---------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is a connection of this process that has not been seen to fail."""
        return self._connection is not None and self._pid == os.getpid() and not self._connection.closed

    @property
    def is_busy(self) -> bool:
        """Whether a statement sent with :meth:`send` has not been answered yet."""
        return self._in_flight

    def fileno(self) -> int:
        """The socket, for an event loop. Raises :exc:`~pgbroker.errors.ConnectionLost` if there is none."""
        if not self.is_open:
            raise errors.ConnectionLost("the connection to Postgres is closed")
        return int(self._connection.fileno())

    def connect(self) -> None:
        """Open the connection unless it is open.

        Raises:
            DatabaseUnreachable: No server there, it refused us, or ``connect_timeout`` passed.
        """
        with self.lock:
            if self.is_open:
                return
            self.discard()
            words = self._libpq_words()
            hosts = max(1, words.get("host", "").count(",") + 1)
            deadline = time.monotonic() + float(words.get("connect_timeout", 10) or 10) * hosts
            try:
                connection = psycopg2.connect(**words, async_=True)
                self._wait(connection, deadline)
            except psycopg2.Error as exc:
                text = " ".join(str(exc).split())
                raise errors.DatabaseUnreachable(f"cannot connect to {self.options.safe_url}: {text}") from None
            except TimeoutError:
                connection.close()
                raise errors.DatabaseUnreachable(
                    f"cannot connect to {self.options.safe_url}: no answer within connect_timeout"
                ) from None
            self._connection, self._cursor = connection, connection.cursor()
            self._in_flight, self._pid, self.has_schema = False, os.getpid(), False

    def _libpq_words(self) -> dict[str, Any]:
        words: dict[str, Any] = dict(self.options.libpq)
        if self.options.embedded_dir is not None:
            from pgbroker.postgres import embedded

            words.update(embedded.ensure_running(self.options.embedded_dir))
        if words.get("application_name") == "pgbroker":
            words["application_name"] = f"pgbroker {self.purpose}"
        return words

    def close(self) -> None:
        """Close the connection; the session may be used again and connects anew."""
        with self.lock:
            if self._connection is not None and self._pid == os.getpid():
                try:
                    self._connection.close()
                except psycopg2.Error:
                    pass
                self._connection = self._cursor = None
                self._in_flight = False
            else:
                self.discard()

    def discard(self) -> None:
        """Forget the connection without a word to the server.

        A forked child must not close what it inherited: that would end the parent's session. Its descriptor
        is pointed at ``/dev/null`` first, so that whatever libpq writes when the object goes away is lost.
        """
        connection, self._connection, self._cursor, self._in_flight = self._connection, None, None, False
        if connection is None:
            return
        if self._pid != os.getpid():
            try:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, connection.fileno())
                os.close(null)
            except (OSError, psycopg2.Error):
                pass
        try:
            connection.close()
        except psycopg2.Error:
            pass

    # -- statements ---------------------------------------------------------------------------------

    def query(
        self, sql: str, args: Sequence[Any] = (), *, timeout: float = STATEMENT_DEADLINE_SECONDS
    ) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own and wait for its rows.

        Args:
            sql: The statement, with ``%s`` for each argument and ``%%`` for a percent sign.
            args: The arguments.
            timeout: Longest wait for the server, in seconds; after it the connection counts as lost.

        Returns:
            All rows, or an empty list for a statement that returns none.

        Raises:
            DatabaseUnreachable: There was no connection and none could be made.
            ConnectionLost: The connection broke; whether the statement took effect is not known.
            DatabaseError: The server refused the statement.
        """
        with self.lock:
            if self._in_flight:
                raise RuntimeError("a statement is in flight on this session: receive() its answer first")
            self.connect()
            self.send(sql, args)
            try:
                return self.receive(timeout)
            except errors.PgBrokerError:
                raise
            except BaseException:  # a time limit, a killed greenlet, Ctrl-C: the answer would meet the next statement
                self.close()
                raise

    def send(self, sql: str, args: Sequence[Any] = ()) -> None:
        """Send one statement and return at once; :meth:`receive` brings the answer."""
        if not self.is_open:
            raise errors.ConnectionLost("the connection to Postgres is closed")
        try:
            # psycopg2 takes "%%" for "%" only where there are arguments
            self._cursor.execute(sql, args) if args else self._cursor.execute(sql.replace("%%", "%"))
        except psycopg2.Error as exc:
            raise self._failed(exc) from None
        except ValueError as exc:  # also UnicodeEncodeError; nothing was sent
            raise errors.DatabaseError(f"an argument cannot be sent to Postgres: {exc}") from None
        self._in_flight = True

    def receive(self, timeout: float | None = STATEMENT_DEADLINE_SECONDS) -> list[tuple[Any, ...]]:
        """The rows of the statement in flight; waits for them at most ``timeout`` seconds."""
        try:
            self._wait(self._connection, None if timeout is None else time.monotonic() + timeout)
            self._in_flight = False
            rows: list[tuple[Any, ...]] = self._cursor.fetchall() if self._cursor.description else []
        except psycopg2.Error as exc:
            self._in_flight = False
            raise self._failed(exc) from None
        except TimeoutError:
            self.close()
            raise errors.ConnectionLost(f"no answer from Postgres within {timeout:g} s") from None
        return rows

    def pump(self) -> bool:
        """Take in what has arrived on the socket, without waiting.

        Returns:
            Whether the answer to the statement in flight is complete (``True`` also if none is in flight).
        """
        if not self.is_open:
            raise errors.ConnectionLost("the connection to Postgres is closed")
        try:
            while True:
                state = self._connection.poll()
                if state == ext.POLL_OK:
                    return True
                if state == ext.POLL_READ:
                    return False
                self._wait_once(self._connection.fileno(), select.POLLOUT, 1.0)
        except psycopg2.Error as exc:
            raise self._failed(exc) from None

    def take_notifications(self) -> list[str]:
        """Channels that were notified since the last call.

        What arrived together with an answer lies in libpq, and the socket will not become readable again for it:
        hence the look before the list is read.
        """
        if not self.is_open:
            return []
        if not self._in_flight:
            self.pump()
        if not self._connection.notifies:
            return []
        channels = [notify.channel for notify in self._connection.notifies]
        del self._connection.notifies[:]
        return channels

    def _wait_once(self, fd: int, event: int, timeout: float) -> bool:
        poller = self._poll()
        poller.register(fd, event)
        return bool(poller.poll(max(0.0, timeout) * 1000))

    def _wait(self, connection: Any, deadline: float | None) -> None:
        """Drive libpq until it is idle. Raises ``TimeoutError`` at the deadline (``time.monotonic`` seconds)."""
        while True:
            state = connection.poll()
            if state == ext.POLL_OK:
                return
            left = 3600.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._wait_once(
                connection.fileno(), select.POLLIN if state == ext.POLL_READ else select.POLLOUT, min(left, 3600.0)
            )

    def _failed(self, exc: psycopg2.Error) -> errors.PgBrokerError:
        self._in_flight = False
        mapped = map_error(exc, is_closed=bool(self._connection.closed))
        if self.has_schema and exc.pgcode in _GONE_STATES and self.options.schema in (exc.diag.message_primary or ""):
            from pgbroker.postgres import migrate

            migrate.forget(self.options)
            what = str(mapped).split(" LINE ")[0]
            mapped = errors.ConnectionLost(
                f'schema "{self.options.schema}" was dropped or changed while this process was using it: {what}'
            )
        if isinstance(mapped, errors.ConnectionLost):
            self.close()
        return mapped


def _after_fork_in_child() -> None:
    for session in list(_sessions):
        session.lock = threading.RLock()
        session.discard()


os.register_at_fork(after_in_child=_after_fork_in_child)
