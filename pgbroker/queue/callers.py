"""Connections of applications, in whose transactions publishes can run: what they have in common, and the drivers.

A driver's connection is used through a plain cursor of its own, past cursor factories, row factories and logging that
the application may have given it. Nothing is committed, rolled back or set on it. No library is imported here that the
application has not loaded itself (psycopg2 is our own driver anyway).
"""

from __future__ import annotations

import itertools
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from psycopg2 import extensions

from pgbroker import errors

#: Of libpq's transaction states (``PQtransactionStatus``), those that psycopg2 and psycopg 3 both report.
IDLE, IN_ERROR, UNKNOWN = 0, 3, 4

_MARK = re.compile(r"%[s%]")


class DriverConnection(ABC):
    """A driver's connection, as we use it.

    Args:
        raw: The connection.
    """

    #: What the driver raises for a statement that failed, or that could not be sent.
    failures: tuple[type[Exception], ...] = (Exception,)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    @property
    def identity(self) -> Any:
        """An object that lives as long as the connection, and can be weakly referenced."""
        return self.raw

    @property
    @abstractmethod
    def is_autocommit(self) -> bool:
        """Whether a statement sent now would be committed by itself."""

    @abstractmethod
    def has_failed(self) -> bool:
        """Whether PostgreSQL would refuse to commit the transaction, or the connection is gone."""

    @abstractmethod
    def query(self, sql: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement with ``%s`` for each argument."""


class _Libpq(DriverConnection):
    """What tells its transaction state without a word to the server."""

    @property
    def _info(self) -> Any:
        return self.raw.info

    @property
    def is_autocommit(self) -> bool:
        """See the base class."""
        return bool(self.raw.autocommit) and self._info.transaction_status == IDLE

    def has_failed(self) -> bool:
        """See the base class."""
        return bool(self.raw.closed) or self._info.transaction_status in (IN_ERROR, UNKNOWN)


class Psycopg2Connection(_Libpq):
    """psycopg2."""

    def __init__(self, raw: extensions.connection) -> None:
        super().__init__(raw)
        if raw.async_:
            raise TypeError("an asynchronous psycopg2 connection has no transactions that a publish could join")

    def query(self, sql: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """See the base class."""
        with extensions.cursor(self.raw) as cursor:
            cursor.execute(sql, args)
            return cursor.fetchall()


class PsycopgConnection(_Libpq):
    """psycopg 3. Parameters are put in by the client: the types of a function's arguments are known to the server."""

    def query(self, sql: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """See the base class."""
        psycopg = sys.modules["psycopg"]
        with psycopg.ClientCursor(self.raw, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(sql, args)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows


class AdaptedPsycopg(_Libpq):
    """psycopg 3's asynchronous connection in SQLAlchemy's adapter, for code inside ``run_sync``."""

    @property
    def identity(self) -> Any:
        """See the base class."""
        return self.raw.driver_connection

    def query(self, sql: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """See the base class."""
        return _query_adapted(self.raw, sql, args)


class AdaptedAsyncpg(DriverConnection):
    """asyncpg in SQLAlchemy's adapter, for code inside ``run_sync``."""

    @property
    def identity(self) -> Any:
        """See the base class."""
        return self.raw.driver_connection

    @property
    def is_autocommit(self) -> bool:
        """See the base class."""
        return bool(self.raw.autocommit) and not self.raw.driver_connection.is_in_transaction()

    def has_failed(self) -> bool:
        """See the base class."""
        driver = self.raw.driver_connection
        if driver.is_closed():
            return True
        if not driver.is_in_transaction():
            return False
        try:  # asyncpg does not tell an aborted transaction from one that goes well
            _query_adapted(self.raw, "select 1", ())
        except Exception:
            return True
        return False

    def query(self, sql: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """See the base class."""
        numbers = itertools.count(1)
        return _query_adapted(self.raw, _MARK.sub(lambda m: "%" if m[0] == "%%" else f"${next(numbers)}", sql), args)


def _query_adapted(raw: Any, sql: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    cursor = raw.cursor()
    try:
        cursor.execute(sql, tuple(args))
        return [tuple(row) for row in cursor.fetchall()]
    finally:
        cursor.close()


#: By the name of the connection's class, or of one that it is derived from.
_DRIVERS: dict[str, type[DriverConnection]] = {
    "psycopg2.extensions.connection": Psycopg2Connection,
    "psycopg.Connection": PsycopgConnection,
    "sqlalchemy.dialects.postgresql.asyncpg.AsyncAdapt_asyncpg_connection": AdaptedAsyncpg,
    "sqlalchemy.dialects.postgresql.psycopg.AsyncAdapt_psycopg_connection": AdaptedPsycopg,
}


def class_names(given: Any) -> list[str]:
    """The full names of an object's class and of those that it is derived from."""
    return [f"{cls.__module__}.{cls.__qualname__}" for cls in type(given).__mro__]


def driver_connection(raw: Any) -> DriverConnection | None:
    """The connection as we use it; ``None`` if we do not know its driver."""
    while hasattr(raw, "__wrapped__"):  # tracing tools wrap connections
        raw = raw.__wrapped__
    for name in class_names(raw):
        if name in _DRIVERS:
            return _DRIVERS[name](raw)
    return None


class Caller(ABC):
    """Whoever has a connection and decides when its transaction ends.

    Args:
        owner: What the application gave us.
    """

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    @abstractmethod
    def connection(self) -> DriverConnection:
        """The connection, in a transaction or such that its next statement begins one.

        Raises:
            NotInTransaction: It commits each statement by itself.
            TransactionFailed: Its transaction has failed already.
        """

    @abstractmethod
    def note_failure(self, failure: errors.TransactionFailed) -> None:
        """Our statement made the transaction fail: keep its end from passing for a commit, where that is possible."""


class BareCaller(Caller):
    """A connection of psycopg2 or psycopg 3."""

    def __init__(self, owner: Any, driver: DriverConnection) -> None:
        super().__init__(owner)
        self._driver = driver

    def connection(self) -> DriverConnection:
        """See the base class."""
        return checked(self._driver)

    def note_failure(self, failure: errors.TransactionFailed) -> None:
        """Nothing: the drivers have no place for it; their COMMIT rolls back and says nothing."""


def checked(
    connection: DriverConnection, how: str = "set its autocommit to False or begin a transaction"
) -> DriverConnection:
    """The connection, if a publish can join its transaction; see :meth:`Caller.connection`.

    Args:
        connection: The connection.
        how: What to do about one that is in autocommit mode.
    """
    if connection.is_autocommit:
        raise errors.NotInTransaction(
            f"the connection is in autocommit mode and in no transaction that a publish could join: {how}, or publish "
            "without pgbroker.transaction()"
        )
    return connection
