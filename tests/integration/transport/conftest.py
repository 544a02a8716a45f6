"""Connections of plain kombu to a database of the module's own."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection

from pgbroker.options import Options
from pgbroker.postgres import pool
from pgbroker.postgres.connection import Session
from pgbroker.queue.upkeep import Upkeep
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


# -- queues -----------------------------------------------------------------------------------------


@pytest.fixture
def count() -> Callable[[Any, str], int]:
    """How many messages wait in a queue; an error if it is unknown."""

    def count(channel: Any, queue: str) -> int:
        return int(channel.queue_declare(queue, passive=True).message_count)

    return count


@pytest.fixture
def bodies() -> Callable[[Any, str], list[Any]]:
    """Read everything that waits in a queue, in order."""

    def bodies(channel: Any, queue: str) -> list[Any]:
        found = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message.payload)
        return found

    return bodies


@pytest.fixture
def rows(module_database: Any) -> Callable[..., list[tuple[Any, ...]]]:
    """Run SQL in the module's database."""

    def rows(sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with closing(module_database.connect()) as admin, admin.cursor() as cursor:
            cursor.execute(sql, args)
            return cursor.fetchall() if cursor.description else []

    return rows


@pytest.fixture
def wait_for_expiry(rows: Any) -> Callable[[str], None]:
    """Wait until all that lies in a queue has expired; there must be something."""

    def wait_for_expiry(queue: str) -> None:
        deadline = time.monotonic() + 10
        sql = (
            "select bool_and(expires_at <= clock_timestamp()) from (select queue, expires_at from pgbroker.jobs_live "
            "union all select queue, expires_at from pgbroker.mailbox) waiting where queue = %s"
        )
        while (state := rows(sql, queue)) != [(True,)]:
            assert state == [(False,)], "nothing waits there, or not for its expiry"
            assert time.monotonic() < deadline
            time.sleep(0.02)

    return wait_for_expiry


@pytest.fixture
def run_upkeep(module_database: Any) -> Callable[[], None]:
    """Do what any worker does every now and then: end what has expired, remove what nobody uses."""
    options = Options.from_url(module_database.url)

    def run_upkeep() -> None:
        with closing(Session(options)) as session:
            Upkeep(options, session.query).run_once()

    return run_upkeep


@pytest.fixture
def expire(wait_for_expiry: Any, run_upkeep: Any) -> Callable[[str], None]:
    """Let what lies in a queue expire, and end it."""

    def expire(queue: str) -> None:
        wait_for_expiry(queue)
        run_upkeep()

    return expire
