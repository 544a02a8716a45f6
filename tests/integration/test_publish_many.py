"""Many messages by one statement: what each becomes is what ``publish()`` makes of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres import pool
from pgbroker.queue import bulk
from pgbroker.queue.routing import QueueTraits, routing_for
from pgbroker.queue.store import Message, Published, store_for

NOW = dt.datetime.now(dt.UTC)
ROUTING, STORE = routing_for("pgbroker"), store_for("pgbroker")


@pytest.fixture
def sessions(module_database: Any) -> Iterator[pool.SessionPool]:
    yield pool.pool_for(Options.from_url(module_database.url))
    pool.close_all()


def messages(queue: str) -> list[Message]:
    """Each rule of ``publish()``, some of them twice."""
    plain = Message(queue=queue, task_name="t", headers='{"task": "t"}', properties="{}", body=b"\x00\xffbody")
    variants: list[dict[str, Any]] = [
        {},
        {"priority": 9},
        {"priority": 2, "content_type": "text/plain", "content_encoding": "utf-8"},
        {"run_after": NOW + dt.timedelta(hours=1)},
        {"delay_seconds": 3600.0},
        {"expires_at": NOW + dt.timedelta(seconds=5)},
        {"expires_at": NOW + dt.timedelta(days=5)},
        {"ttl_seconds": 30.0, "max_attempts": 7},
        {"dedupe_key": "free"},
        {"dedupe_key": "free"},
        {"dedupe_key": "held"},
        {"dedupe_key": "held by what has expired"},
        {"task_id": f"{queue} revoked"},
        {"headers": None, "properties": None, "task_name": None},
    ]
    return [plain._replace(**{"task_id": f"{queue} {number}", **variant}) for number, variant in enumerate(variants)]


def prepare(sessions: pool.SessionPool, queue: str, traits: QueueTraits) -> None:
    """Make the queue, with jobs that hold keys, one of which has expired, and revoke a task."""
    sessions.query(*ROUTING.declare_queue(queue, traits))
    for number, (key, expires) in enumerate([("held", None), ("held by what has expired", NOW)]):
        holder = Message(queue=queue, task_id=f"{queue} holder {number}", dedupe_key=key, expires_at=expires)
        sessions.query(*STORE.publish(holder))
    sessions.query(*STORE.revoke([f"{queue} revoked"]))


def stored(sessions: pool.SessionPool, queue: str) -> list[tuple[Any, ...]]:
    """The rows, without what differs from one publish to the next, and times in minutes from now."""
    minutes = "round(extract(epoch from {} - %s) / 60)"
    return sessions.query(
        f"select replace(task_id, %s, ''), task_name, status, priority, {minutes.format('run_after')}, "
        f"{minutes.format('expires_at')}, max_attempts, dedupe_key, coalesce(exchange, ''), content_type, "
        "content_encoding, headers, properties, body::text from pgbroker.jobs_live where queue = %s order by job_id",
        (queue, NOW, NOW, queue),
    )


@pytest.mark.parametrize(
    "traits",
    [QueueTraits(), QueueTraits(ttl_seconds=600.0, max_priority=3, arguments='{"x-max-priority": 3}')],
    ids=["plain", "limited"],
)
def test_a_batch_becomes_what_single_publishes_become(
    sessions: pool.SessionPool, traits: QueueTraits, request: pytest.FixtureRequest
) -> None:
    single, many = (f"{kind} {request.node.callspec.id}" for kind in ("single", "many"))
    for queue in (single, many):
        prepare(sessions, queue, traits)
    one_by_one = [Published(*sessions.query(*STORE.publish(message))[0]) for message in messages(single)]
    together = bulk.publish_all(sessions, [bulk.Letter(message) for message in messages(many)])

    assert len(stored(sessions, single)) > 8
    assert sorted(map(repr, stored(sessions, many))) == sorted(map(repr, stored(sessions, single)))
    for alone, found in zip(one_by_one, together, strict=True):
        [batched] = found
        assert (batched.queue, batched.kind) == (many, "job")
        assert (batched.job_id is None) == (alone.job_id is None)
        assert (batched.duplicate_task_id or "").removeprefix(many) == (
            (alone.duplicate_task_id or "").removeprefix(single)
        )
    [(revoked,)] = sessions.query("select result_state from pgbroker.job_log where task_id = %s", (f"{many} revoked",))
    assert revoked == "REVOKED"


def test_the_first_of_a_batch_gets_the_key(sessions: pool.SessionPool) -> None:
    letters = [bulk.Letter(Message(queue="twins", task_id=str(n), dedupe_key="k")) for n in range(3)]
    went_to = bulk.publish_all(sessions, letters)
    assert [found[0].duplicate_task_id for found in went_to] == [None, "0", "0"]


def test_each_queue_is_notified_once(sessions: pool.SessionPool, module_database: Any) -> None:
    [(channel,)] = sessions.query(*STORE.queue_channels(["bell"]))
    [(other,)] = sessions.query(*STORE.queue_channels(["later"]))
    listener = module_database.connect()
    with listener, listener.cursor() as cursor:
        cursor.execute(f'listen "{channel}"; listen "{other}"')
    letters = [bulk.Letter(Message(queue="bell")) for _ in range(1200)]
    bulk.publish_all(sessions, [*letters, bulk.Letter(Message(queue="later", delay_seconds=60.0))])
    with listener, listener.cursor() as cursor:
        cursor.execute("select 1")
    assert [notice.channel for notice in listener.notifies] == [channel]
    listener.close()


def test_an_error_says_which_message_was_refused_and_nothing_stays(sessions: pool.SessionPool) -> None:
    letters = [bulk.Letter(Message(queue="refusing", task_id=str(n), task_name="t")) for n in range(600)]
    letters[554] = bulk.Letter(letters[554].message._replace(priority=12))
    with pytest.raises(errors.BatchFailed, match=r"message 555 of the batch \(task t, id 554\).*nothing") as caught:
        bulk.publish_all(sessions, letters)
    assert caught.value.sqlstate == "23514"
    assert stored(sessions, "refusing") == []
    bulk.publish_all(sessions, letters[:3])
    assert len(stored(sessions, "refusing")) == 3
