"""Callers who have their connection from SQLAlchemy or Django, found by name: neither is imported here by itself.

COMMIT of a transaction that has failed is answered by PostgreSQL with ROLLBACK and no error, and the drivers say
nothing either. So that nobody believes that something was stored, a failure of ours is noted where the framework looks
when the transaction ends.
"""

from __future__ import annotations

import sys
from typing import Any

from pgbroker import errors
from pgbroker.queue.callers import BareCaller, Caller, DriverConnection, checked, class_names, driver_connection

_SESSION = "sqlalchemy.orm.session.Session"
#: The name of the class of sessions that belong to a thread or request.
SCOPED_SESSION = "sqlalchemy.orm.scoping.scoped_session"
_CONNECTION = "sqlalchemy.engine.base.Connection"
_DJANGO_WRAPPER = "django.db.backends.base.base.BaseDatabaseWrapper"

_KINDS = (
    "a SQLAlchemy Session or Connection, a psycopg2 or psycopg 3 connection, or a Django connection or the alias of one"
)

#: What has to be awaited, and what to do instead.
_AWAITABLE = {
    "sqlalchemy.ext.asyncio.session.AsyncSession": "pass the Session that run_sync() gives your function",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "pass the Session that run_sync() gives your function",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "pass the Connection that run_sync() gives your function",
    "psycopg.AsyncConnection": "use SQLAlchemy's AsyncSession.run_sync() or a synchronous connection",
    "asyncpg.connection.Connection": "use SQLAlchemy's AsyncSession.run_sync() or a synchronous connection",
}


class SqlalchemyCaller(Caller):
    """A ``Session`` or a ``Connection`` of SQLAlchemy."""

    def connection(self) -> DriverConnection:
        """See :meth:`Caller.connection`; begins SQLAlchemy's transaction, or its commit would do nothing."""
        connection = self._connection()
        driver = _supported(connection.connection.dbapi_connection, self.owner)
        checked(driver, "leave the isolation level AUTOCOMMIT")
        if not connection.in_transaction():
            connection.begin()
        return driver

    def _connection(self) -> Any:
        return self.owner.connection() if _SESSION in class_names(self.owner) else self.owner

    def note_failure(self, failure: errors.TransactionFailed) -> None:
        """Let a commit raise, unless a rollback to a savepoint has mended the transaction before."""
        from sqlalchemy import event

        def refuse(connection: Any) -> None:
            driver = driver_connection(connection.connection.dbapi_connection)
            if driver is None or not driver.has_failed():
                return
            connection.dialect.do_rollback(connection.connection)
            raise errors.TransactionFailed(
                f"nothing was committed, because a publish had made the transaction fail: {failure}",
                sqlstate=failure.sqlstate,
            ) from failure

        event.listen(self._connection(), "commit", refuse)


class DjangoCaller(Caller):
    """A database connection of Django."""

    def connection(self) -> DriverConnection:
        """See :meth:`Caller.connection`."""
        wrapper = self.owner
        if wrapper.vendor != "postgresql":
            raise _unsupported(f"Django's connection {wrapper.alias!r} to {wrapper.vendor}")
        wrapper.ensure_connection()
        if not wrapper.in_atomic_block and wrapper.get_autocommit():
            raise errors.NotInTransaction(
                f"Django's connection {wrapper.alias!r} is in no transaction that a publish could join: use "
                "transaction.atomic(), or publish without pgbroker.transaction()"
            )
        if wrapper.needs_rollback:
            raise errors.TransactionFailed(
                f"the transaction of Django's connection {wrapper.alias!r} is to be rolled back; nothing was sent"
            )
        return _supported(wrapper.connection, wrapper)

    def note_failure(self, failure: errors.TransactionFailed) -> None:
        """Let Django roll back at the end of the atomic block, and refuse queries until then."""
        self.owner.errors_occurred = True  # Django looks then whether the connection can still be used
        if self.owner.in_atomic_block:
            self.owner.needs_rollback = True


def caller_for(given: Any) -> Caller:
    """What an application named as its connection.

    Raises:
        TypeError: It is nothing whose transaction a publish could join.
    """
    if isinstance(given, str):
        return DjangoCaller(_django_wrapper(given))
    if "django" in sys.modules and hasattr(given, "_connections") and hasattr(given, "_alias"):
        return DjangoCaller(_django_wrapper(given._alias))  # django.db.connection, a proxy
    names = class_names(given)
    for name in names:
        if name in _AWAITABLE:
            raise TypeError(f"{name.rpartition('.')[2]} has to be awaited, a publish is not: {_AWAITABLE[name]}")
    if _DJANGO_WRAPPER in names:
        return DjangoCaller(given)
    if SCOPED_SESSION in names:
        return SqlalchemyCaller(given())
    if _SESSION in names or _CONNECTION in names:
        return SqlalchemyCaller(given)
    return BareCaller(given, _supported(given, given))


def _django_wrapper(alias: str) -> Any:
    if "django.db" not in sys.modules:
        raise TypeError(
            f"{alias!r} is taken for a database alias of Django, which is not in use here; expected {_KINDS}"
        )
    return sys.modules["django.db"].connections[alias]


def _supported(raw: Any, owner: Any) -> DriverConnection:
    driver = driver_connection(raw)
    if driver is None:
        raise _unsupported(class_names(raw)[0] if raw is owner else f"{class_names(owner)[0]} on {class_names(raw)[0]}")
    return driver


def _unsupported(what: str) -> TypeError:
    return TypeError(f"a publish cannot join a transaction of {what}; expected {_KINDS}, on psycopg2 or psycopg 3")
