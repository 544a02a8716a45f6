"""Connections of plain kombu to a database of the module's own."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection

from pgbroker.postgres import pool
from pgbroker.transport.process import all_processes

Connect = Callable[..., Connection]


@pytest.fixture
def connect(module_database: Any) -> Iterator[Connect]:
    """Open kombu connections to the module's database."""
    opened: list[Connection] = []

    def open_one(url: str | None = None, **options: Any) -> Connection:
        connection = Connection(url or module_database.url, transport_options=options)
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.release()
    for process in all_processes():
        process.keeper.stop()
    pool.close_all()


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect()


@pytest.fixture
def channel(connection: Connection) -> Any:
    return connection.channel()


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A queue name that no other test uses."""
    return f"queue-{next(_numbers)}"


@pytest.fixture
def drain() -> Callable[..., None]:
    """Wait for so many messages on a connection."""

    def drain(connection: Connection, want: int, seconds: float = 5) -> None:
        for _ in range(want):
            connection.drain_events(timeout=seconds)

    return drain


@pytest.fixture
def assert_quiet() -> Callable[[Connection], None]:
    """Check that nothing more comes in."""

    def check(connection: Connection) -> None:
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)

    return check
