"""Each kind of connection that a publish can join, with the same handles: execute, commit, rollback, savepoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import psycopg
import psycopg2
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from psycopg2.extensions import make_dsn
from sqlalchemy.orm import Session


class Opened(NamedTuple):
    """A connection in use.

    Attributes:
        conn: What goes to ``pgbroker.transaction``.
        execute: Runs SQL in the application's own way; rows if there are any.
        savepoint: A block that is rolled back at its end.
    """

    conn: Any
    execute: Callable[[str], list[tuple[Any, ...]]]
    commit: Callable[[], None]
    rollback: Callable[[], None]
    savepoint: Callable[[], AbstractContextManager[None]]


Opener = Callable[[dict[str, str]], AbstractContextManager[Opened]]


@contextmanager
def open_psycopg2(dsn: dict[str, str]) -> Iterator[Opened]:
    connection = psycopg2.connect(make_dsn(**dsn))

    def execute(sql: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def savepoint() -> Iterator[None]:
        execute("savepoint here")
        yield
        execute("rollback to savepoint here")

    yield Opened(connection, execute, connection.commit, connection.rollback, savepoint)
    connection.close()


@contextmanager
def open_psycopg(dsn: dict[str, str]) -> Iterator[Opened]:
    connection = psycopg.connect(make_dsn(**dsn), row_factory=psycopg.rows.dict_row)

    def execute(sql: str) -> list[tuple[Any, ...]]:
        cursor = connection.execute(sql)
        return [tuple(row.values()) for row in cursor] if cursor.description else []

    @contextmanager
    def savepoint() -> Iterator[None]:
        with connection.transaction(force_rollback=True):
            yield

    yield Opened(connection, execute, connection.commit, connection.rollback, savepoint)
    connection.close()


def _open_sqlalchemy(driver: str, kind: type) -> Opener:
    @contextmanager
    def open_one(dsn: dict[str, str]) -> Iterator[Opened]:
        engine = sqlalchemy.create_engine(f"postgresql+{driver}://", connect_args=dsn)
        with engine.connect() as connection, Session(engine) as session:
            conn: Any = session if kind is Session else connection

            def execute(sql: str) -> list[tuple[Any, ...]]:
                result = conn.execute(sqlalchemy.text(sql))
                return [tuple(row) for row in result] if result.returns_rows else []

            @contextmanager
            def savepoint() -> Iterator[None]:
                nested = conn.begin_nested()
                yield
                nested.rollback()

            yield Opened(conn, execute, conn.commit, conn.rollback, savepoint)
        engine.dispose()

    return open_one


def configure_django() -> None:
    """A project without applications; which database it uses is said by each test."""
    if not settings.configured:
        unused = {"ENGINE": "django.db.backends.postgresql", "NAME": "unused"}
        settings.configure(DATABASES={"default": unused, "other": unused})
        import django

        django.setup()


@contextmanager
def django_database(dsn: dict[str, str], alias: str = "default") -> Iterator[DatabaseWrapper]:
    """Let an alias of Django lead to a database."""
    configure_django()
    words = dict(dsn)
    described = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": words.pop("dbname"),
        "USER": words.pop("user", ""),
        "PASSWORD": words.pop("password", ""),
        "HOST": words.pop("host", ""),
        "PORT": words.pop("port", ""),
        "OPTIONS": words,
    }
    before = connections[alias]
    wrapper = DatabaseWrapper(connections.configure_settings({"default": {}, alias: described})[alias], alias)
    connections[alias] = wrapper
    yield wrapper
    wrapper.close()
    connections[alias] = before


@contextmanager
def open_django(dsn: dict[str, str]) -> Iterator[Opened]:
    with django_database(dsn) as wrapper:
        blocks: list[Any] = []

        def begin() -> None:
            blocks.append(transaction.atomic())
            blocks[-1].__enter__()

        def execute(sql: str) -> list[tuple[Any, ...]]:
            with wrapper.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else []

        def commit() -> None:
            blocks.pop().__exit__(None, None, None)
            begin()

        def rollback() -> None:
            transaction.set_rollback(True)
            commit()

        @contextmanager
        def savepoint() -> Iterator[None]:
            with transaction.atomic():
                yield
                transaction.set_rollback(True)

        begin()
        yield Opened("default", execute, commit, rollback, savepoint)
        transaction.set_rollback(True)
        blocks.pop().__exit__(None, None, None)


KINDS: dict[str, Opener] = {
    "psycopg2": open_psycopg2,
    "psycopg": open_psycopg,
    "session": _open_sqlalchemy("psycopg2", Session),
    "session-psycopg": _open_sqlalchemy("psycopg", Session),
    "connection": _open_sqlalchemy("psycopg2", sqlalchemy.Connection),
    "connection-psycopg": _open_sqlalchemy("psycopg", sqlalchemy.Connection),
    "django": open_django,
}
