"""Publishes that run inside an application's own transaction.

Which transaction that is says a context variable. Whoever publishes asks :func:`current`, and if there is a block that
leads to the same database, runs the same SQL functions there that it would run on a connection of its own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres.pool import SessionPool
from pgbroker.queue.callers import Caller, DriverConnection
from pgbroker.queue.store import Call

_CANNOT = "PostgreSQL will not commit the transaction: roll it back, or back to a savepoint"


class _Place(NamedTuple):
    """Where a connection leads to. A server is known by its start, which is recorded in microseconds."""

    started_at: str
    database_oid: int
    database: str
    address: str
    may_publish: bool | None

    def is_same(self, other: _Place) -> bool:
        """Whether it is the same database of the same server."""
        return self[:2] == other[:2]


#: Rights are asked of the catalogue, because what asks the schema itself fails without them.
_PLACE = """
select extract(epoch from pg_postmaster_start_time())::text, d.oid::bigint, d.datname::text,
    coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'a local socket'),
    (select has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'insert')
        from pg_namespace n, pg_class c
        where n.nspname = %s and c.relnamespace = n.oid and c.relname = 'jobs_live')
from pg_database d where d.datname = current_database()
"""

_own_places: dict[Options, _Place] = {}
#: Connections that were seen to lead to the database of these options.
_known: weakref.WeakKeyDictionary[Any, set[Options]] = weakref.WeakKeyDictionary()


class Block:
    """What is published in one ``with`` block.

    Args:
        callers: Whose transaction it joins. None: publishes stay outside.
        is_automatic: The application did not name the connection: where none leads to the broker, publishes stay
            outside instead of being refused.
    """

    def __init__(self, callers: Sequence[Caller], *, is_automatic: bool = False) -> None:
        self._callers = callers
        self._is_automatic = is_automatic
        self._failure: tuple[DriverConnection, errors.TransactionFailed] | None = None
        self._is_over = False

    def transaction(self, pool: SessionPool) -> JoinedTransaction | None:
        """Where publishes to the database of this pool run; ``None``: outside.

        Raises:
            NotInTransaction: The connection commits each statement by itself; or nobody said which of several
                transactions it is.
            OtherDatabase: It leads elsewhere.
            PermissionDenied: Its role may not publish.
            TransactionFailed: Its transaction has failed.
        """
        found: dict[int, JoinedTransaction] = {}
        for caller in self._callers:
            try:
                connection = caller.connection()
            except (TypeError, errors.NotInTransaction):
                if self._is_automatic:
                    continue
                raise
            if connection.has_failed():
                raise errors.TransactionFailed(f"the transaction has failed before; nothing was sent; {_CANNOT}")
            joined = JoinedTransaction(self, caller, connection)
            theirs = _other_place(joined, pool)
            if theirs is None:
                found[id(connection.identity)] = joined
            elif not self._is_automatic:
                broker = f"database {pool.options.safe_url}"
                raise errors.OtherDatabase(broker, f'database "{theirs.database}" at {theirs.address}')
        if len(found) > 1:
            raise errors.NotInTransaction(
                "several transactions in the broker's database are open here, and a publish can join only one of them: "
                "name it with pgbroker.transaction()"
            )
        return next(iter(found.values()), None)

    def note_failure(self, connection: DriverConnection, failure: errors.TransactionFailed) -> None:
        """A publish has made the transaction fail."""
        self._failure = connection, failure

    def end(self) -> None:
        """The block has ended without an error.

        Raises:
            TransactionFailed: A publish made the transaction fail, and nobody has rolled it back since.
        """
        self._is_over = True
        if self._failure is not None:
            connection, failure = self._failure
            if connection.has_failed():
                raise errors.TransactionFailed(f"a publish failed: {failure}", sqlstate=failure.sqlstate) from failure

    def close(self) -> None:
        """Nothing joins any more, also in tasks and threads that got a copy of the context."""
        self._is_over = True

    @property
    def is_over(self) -> bool:
        """Whether the block was left."""
        return self._is_over


class JoinedTransaction(NamedTuple):
    """A transaction of an application that statements of ours may run in."""

    block: Block
    caller: Caller
    connection: DriverConnection

    def query(self, call: Call) -> list[tuple[Any, ...]]:
        """Run one statement.

        Raises:
            TransactionFailed: The server refused it, or the connection is lost.
            DatabaseError: It could not be sent; the transaction goes on as if nothing had been.
        """
        try:
            return self.connection.query(*call)
        except self.connection.failures as exc:
            text = " ".join(str(exc).split()) or type(exc).__name__
            state = getattr(exc, "sqlstate", None) or getattr(exc, "pgcode", None)
            if not self.connection.has_failed():
                raise errors.DatabaseError(f"the message cannot be sent to Postgres: {text}", sqlstate=state) from exc
            failure = errors.TransactionFailed(f"{text}; {_CANNOT}", sqlstate=state)
            self.block.note_failure(self.connection, failure)
            self.caller.note_failure(failure)
            raise failure from exc


def _other_place(joined: JoinedTransaction, pool: SessionPool) -> _Place | None:
    """Where the connection leads to, ``None`` if that is the broker's database; asks once for each connection.

    The schema is then the broker's, too, and its revision was looked at when the pool lent its first session.
    """
    options, connection = pool.options, joined.connection.identity
    if options in _known.get(connection, ()):
        return None
    call = _PLACE, (options.schema,)
    theirs = _Place(*joined.query(call)[0])
    ours = _own_places.get(options)
    if ours is None or not ours.is_same(theirs):  # the server may have been started anew
        ours = _own_places[options] = _Place(*pool.query(*call)[0])
    if not ours.is_same(theirs):
        return theirs
    if not theirs.may_publish:
        raise errors.PermissionDenied(
            f'the role of this connection may not publish into schema "{options.schema}"; `celery -A APP pgbroker '
            "check` prints the grants that it needs"
        )
    _known.setdefault(connection, set()).add(options)
    return None


_current: ContextVar[Block | None] = ContextVar("pgbroker_joined", default=None)


def current() -> Block | None:
    """The block that publishes of this thread, greenlet or task are in."""
    block = _current.get()
    return None if block is None or block.is_over else block


@contextlib.contextmanager
def join(block: Block) -> Iterator[None]:
    """Let what is published in the ``with`` block join."""
    token = _current.set(block)
    try:
        yield
        block.end()
    finally:
        block.close()
        _current.reset(token)


def outside() -> AbstractContextManager[None]:
    """Let what is published in the ``with`` block join nothing, also not by itself."""
    return join(Block((), is_automatic=True))
