"""The servers and databases that tests run on.

``PGBROKER_TEST_DSN`` (a libpq URL or conninfo, of a role that may create databases) names a server; without it
an embedded one is started, PostgreSQL 18 or ``PGBROKER_TEST_EMBEDDED_VERSION``.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import make_dsn, parse_dsn


@dataclass(frozen=True)
class Server:
    """A running server, reached as a role that may create databases."""

    dsn: dict[str, str]

    def url(self, dbname: str, **query: str) -> str:
        """Return the broker URL of a database, with options in the query string."""
        dsn = {**self.dsn, **query}
        user, password = dsn.pop("user", ""), dsn.pop("password", "")
        credentials = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        address = ""
        if not dsn.get("host", "").startswith("/"):
            address = dsn.pop("host", "") + (f":{dsn.pop('port')}" if "port" in dsn else "")
        dsn.pop("dbname", None)
        at = f"{credentials}@" if credentials else ""
        return f"pgbroker://{at}{address}/{quote(dbname, safe='')}" + (f"?{urlencode(dsn)}" if dsn else "")

    def admin(self) -> Connection:
        """Return a new autocommit connection to the server's own database."""
        connection: Connection = psycopg2.connect(make_dsn(**self.dsn))
        connection.autocommit = True
        return connection


@dataclass(frozen=True)
class Database:
    """A database of its own, dropped after the test (or the module)."""

    server: Server
    name: str

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    @property
    def dsn(self) -> dict[str, str]:
        return {**self.server.dsn, "dbname": self.name}

    def connect(self, *, autocommit: bool = True, **parameters: Any) -> Connection:
        """Return a new connection, in autocommit unless told otherwise."""
        connection: Connection = psycopg2.connect(make_dsn(**{**self.dsn, **parameters}))
        connection.autocommit = autocommit
        return connection


@contextmanager
def _new_database(server: Server) -> Iterator[Database]:
    name = f"pgb_test_{os.getpid()}_{uuid.uuid4().hex[:10]}"
    with closing(server.admin()) as admin, admin.cursor() as cursor:
        cursor.execute(f'create database "{name}" template template0')
    try:
        yield Database(server, name)
    finally:
        with closing(server.admin()) as admin, admin.cursor() as cursor:
            cursor.execute(f'drop database if exists "{name}" with (force)')


def pytest_configure() -> None:
    """Whoever runs this in the background may ignore SIGINT; processes that a test interrupts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of the session."""
    named = os.environ.get("PGBROKER_TEST_DSN")
    if named:
        yield Server({"dbname": "postgres", **parse_dsn(named)})
        return
    from pgbroker.postgres import embedded

    version = int(os.environ.get("PGBROKER_TEST_EMBEDDED_VERSION", "18"))
    with tempfile.TemporaryDirectory(prefix="pgb-") as temporary:
        directory = Path(temporary) / "server"
        yield Server(embedded.ensure_running(directory, postgres_version=version))
        embedded.stop(directory)


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    """A fresh, empty database for one test."""
    with _new_database(server) as database:
        yield database


@pytest.fixture(scope="module")
def module_database(server: Server) -> Iterator[Database]:
    """A fresh, empty database shared by the tests of a module."""
    with _new_database(server) as database:
        yield database


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A Celery worker that runs inside a test sets the root logger's level for the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
