"""A purge of any size holds up neither publishers nor workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection, Producer

from pgbroker import errors
from pgbroker.queue import purging
from pgbroker.queue.routing import Routing

BATCH = 3

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "PURGE_BATCH", BATCH)


@pytest.fixture
def sql(channel: Any) -> Sql:
    """Runs a statement; ``%s`` stands for its arguments."""

    def run(statement: str, *args: Any) -> list[tuple[Any, ...]]:
        return channel._query((statement, args))

    return run


@pytest.fixture
def put(channel: Any) -> Callable[..., None]:
    producer = Producer(channel)

    def put(queue: str, count: int = 1, *, priority: int = 0, eta: str | None = None) -> None:
        for number in range(count):
            headers = {"task": "t", "id": f"{queue}-{priority}-{number}-{eta}", "eta": eta}
            producer.publish(b"body", routing_key=queue, headers=headers, priority=priority)

    return put


def statuses(sql: Sql, queue: str) -> dict[str, int]:
    return dict(sql("select status::text, count(*) from pgbroker.job_log where queue = %s group by 1", queue))


def test_ends_all_that_waits_in_small_transactions(channel: Any, sql: Sql, put: Any, name: str) -> None:
    put(name, 2)
    sql("select 1 from pgbroker.claim('w', array[%s], 2, 60)", name)
    for priority in (0, 5, 9):
        put(name, 4, priority=priority)
    put(name, 2, priority=5, eta="2100-01-01T00:00:00+00:00")
    put(f"{name}-other", 2)
    sizes = []

    def query(*call: Any) -> list[tuple[Any, ...]]:
        rows = channel.process.pool.query(*call)
        sizes.append(rows[0][0])
        return rows

    assert purging.purge_queue(query, channel.process.routing, name) == 14
    assert statuses(sql, name) == {"CANCELLED": 14, "RUNNING": 2}
    assert statuses(sql, f"{name}-other") == {"PENDING": 2}
    assert sum(sizes) == 14
    assert max(sizes) == BATCH
    ended = "select count(*), count(distinct task_id), min(outcome), bool_and(body = 'body')"
    assert sql(f"{ended} from pgbroker.outcome_outbox where queue = %s", name) == [(14, 14, "PURGED", True)]


def test_leaves_what_is_published_meanwhile(channel: Any, sql: Sql, put: Any, name: str) -> None:
    put(name, 7)

    def query(*call: Any) -> list[tuple[Any, ...]]:
        put(name, 2, priority=9)
        put(name, 2)
        rows: list[tuple[Any, ...]] = channel.process.pool.query(*call)
        return rows

    # the first look comes after the first publishes
    assert purging.purge_queue(query, channel.process.routing, name) == 7 + 4
    waiting = statuses(sql, name)["PENDING"]
    assert waiting > 0
    assert waiting % 4 == 0
    assert channel.queue_purge(name) == waiting


def test_waits_for_nobody(channel: Any, sql: Sql, put: Any, name: str, module_database: Any) -> None:
    put(name, 5)
    with closing(module_database.connect(autocommit=False)) as another, another.cursor() as cursor:
        cursor.execute("select 1 from pgbroker.jobs_live where task_id = %s for update", [f"{name}-0-1-None"])
        assert cursor.rowcount == 1
        assert channel.queue_purge(name) == 4
    assert statuses(sql, name) == {"CANCELLED": 4, "PENDING": 1}


def test_deletes_a_queue_in_small_transactions(
    channel: Any, sql: Sql, put: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(name, 7)
    channel.queue_declare(name)
    batches = []
    purge_batch = Routing.purge_batch
    monkeypatch.setattr(Routing, "purge_batch", lambda *args: batches.append(1) or purge_batch(*args))
    with pytest.raises(errors.PreconditionFailed):
        channel.queue_delete(name, if_empty=True)
    assert batches == []
    assert channel.queue_delete(name) == 7
    assert len(batches) >= 3
    assert statuses(sql, name) == {"CANCELLED": 7}
    assert sql("select 1 from pgbroker.queues where name = %s", name) == []


def test_purges_a_transient_queue(connection: Connection, channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    producer = Producer(channel)
    for number in range(7):
        producer.publish(number, routing_key=name)
    assert channel.queue_purge(name) == 7
    assert channel.queue_purge(name) == 0
