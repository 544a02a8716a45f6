"""JobQueue on a real server: every method, bad arguments, waiting, lost connections, forks."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import pgbroker
from pgbroker import DuplicateJob, Job, JobQueue, JobStatus
from pgbroker.errors import (
    DatabaseUnreachable,
    OptionError,
    PgBrokerError,
    StatementTimeout,
)
from pgbroker.options import Options
from pgbroker.postgres import pool
from pgbroker.queue.routing import QueueTraits, routing_for

if TYPE_CHECKING:
    from conftest import Database


UTC = dt.UTC


@pytest.fixture(scope="module")
def queues(module_database: Database) -> Iterator[JobQueue]:
    with JobQueue(module_database.url, poll_interval=30) as jobs:
        yield jobs


@pytest.fixture
def name() -> str:
    """A queue of the test's own."""
    return f"q-{uuid.uuid4().hex[:8]}"


def execute(database: Database, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(sql, args)
        return cursor.fetchall() if cursor.description else []


def expire_lease(database: Database, job_id: int) -> None:
    execute(
        database,
        "update pgbroker.jobs_live set lease_until = clock_timestamp() - interval '1 second' where job_id = %s",
        job_id,
    )


def wait_until(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def put(jobs: JobQueue, queue: str, **options: Any) -> int:
    job_id = jobs.enqueue("task", {}, queue=queue, **options)
    assert job_id is not None
    return job_id


def take(jobs: JobQueue, queue: str, worker: str = "w", **options: Any) -> Job:
    job = jobs.claim(worker, queues=(queue,), **options)
    assert isinstance(job, Job)
    return job


def status(jobs: JobQueue, job_id: int) -> JobStatus | None:
    job = jobs.get(job_id)
    return job and job.status


# -- a job's life ----------------------------------------------------------------------------------------


def test_a_job_from_enqueue_to_history(queues: JobQueue, name: str) -> None:
    before = dt.datetime.now(UTC)
    job_id = queues.enqueue("shop.ship", {"order": 7, "ü": [None, 1.5, "\0"]}, queue=name, priority=3, dedupe_key="o7")
    assert isinstance(job_id, int)
    waiting = queues.get(job_id)
    assert waiting is not None
    assert waiting.status is JobStatus.PENDING
    assert (waiting.task_name, waiting.queue, waiting.priority, waiting.dedupe_key) == ("shop.ship", name, 3, "o7")
    assert waiting.payload == {"order": 7, "ü": [None, 1.5, "\0"]}
    assert (waiting.args, waiting.raw, waiting.attempts, waiting.max_attempts) == ([], None, 0, 5)
    assert waiting.enqueued_at is not None
    assert waiting.enqueued_at.tzinfo is UTC
    assert abs(waiting.enqueued_at - before) < dt.timedelta(minutes=1)
    assert (waiting.claim, waiting.worker, waiting.lease_until, waiting.claimed_at) == (None, None, None, None)

    job = take(queues, name)
    assert (job.job_id, job.worker, job.attempts, job.status) == (job_id, "w", 1, "RUNNING")
    assert job.claim
    assert job.claimed_at is not None
    assert job.lease_until is not None
    assert job.lease_until - job.claimed_at == dt.timedelta(seconds=60)
    assert job["payload"] == waiting.payload
    with pytest.raises(KeyError):
        job["no such column"]

    assert queues.complete(job_id, "w", {"parcel": [1]}) is True
    assert queues.complete(job_id, "w") is False
    done = queues.get(job_id)
    assert done is not None
    assert (done.status, done.result, done.worker, done.attempts) == (JobStatus.DONE, {"parcel": [1]}, "w", 1)
    assert done.finished_at is not None
    assert queues.find_active("o7") is None


def test_history_ends(database: Database) -> None:
    with JobQueue(database.url) as jobs:
        job_id = put(jobs, "celery")
        jobs.claim("w")
        assert jobs.complete(job_id, "w", result=1)
        assert status(jobs, job_id) == "DONE"
        execute(database, "update pgbroker.job_history set finished_at = finished_at - interval '86401 seconds'")
        assert jobs.get(job_id) is None

        execute(database, "update pgbroker.settings set value = '0' where name = 'history_seconds'")
        kept_nowhere = put(jobs, "celery")
        jobs.claim("w")
        assert jobs.complete(kept_nowhere, "w")
        assert jobs.get(kept_nowhere) is None


def test_claim_one_or_several(queues: JobQueue, name: str) -> None:
    assert queues.claim("w", queues=(name,)) is None
    assert queues.claim("w", queues=(name,), limit=2) == []
    ids = [put(queues, name) for _ in range(3)]
    assert [job.job_id for job in queues.claim("w", queues=[name], limit=2)] == ids[:2]
    assert [job.job_id for job in queues.claim("w", queues=name, limit=2)] == ids[2:]
    assert len({queues.get(job_id).claim for job_id in ids}) == 3  # type: ignore[union-attr]


def test_order(queues: JobQueue, name: str) -> None:
    second = f"{name}-second"
    urgent_elsewhere = put(queues, second, priority=9)
    low, high, higher, too_high, too_low = (put(queues, name, priority=p) for p in (0, 5, 9, 1000, -3))
    early = put(queues, name, priority=5, run_after=dt.datetime(2020, 1, 1))
    found = queues.claim("w", queues=(name, second, name), limit=100)
    assert [job.job_id for job in found] == [higher, too_high, early, high, low, too_low, urgent_elsewhere]
    assert [job.priority for job in found[:2]] == [9, 9]


def test_low_first(database: Database) -> None:
    with JobQueue(database.url, priority_order="low_first") as jobs:
        ids = [put(jobs, "celery", priority=p) for p in (9, 0, 5)]
        assert take(jobs, "celery").job_id == ids[1]
        assert [job.job_id for job in jobs.claim("w", limit=5)] == [ids[2], ids[0]]


@pytest.mark.parametrize("later", [1.5, 2, dt.timedelta(seconds=1.5), "aware", "naive"])
def test_run_after(queues: JobQueue, name: str, module_database: Database, later: Any) -> None:
    now = execute(module_database, "select clock_timestamp()")[0][0].astimezone(dt.timezone(dt.timedelta(hours=5)))
    if later == "aware":
        later = now + dt.timedelta(seconds=2)
    if later == "naive":
        later = now.astimezone(UTC).replace(tzinfo=None) + dt.timedelta(seconds=2)
    job_id = put(queues, name, run_after=later)
    job = queues.get(job_id)
    assert job is not None
    assert job.run_after is not None
    assert dt.timedelta(seconds=1) < job.run_after - now < dt.timedelta(seconds=4)
    assert queues.claim("w", queues=(name,)) is None
    assert queues.stats()[name].scheduled == 1
    assert queues.listen((name,), 10)
    assert take(queues, name).job_id == job_id


def test_expired_jobs_are_neither_claimed_nor_counted(queues: JobQueue, name: str) -> None:
    put(queues, name, expires=0, dedupe_key="gone")
    put(queues, name, expires=dt.datetime(2020, 1, 1, tzinfo=UTC))
    kept = put(queues, name, expires=dt.timedelta(hours=1))
    assert queues.stats()[name].ready == 1
    assert queues.find_active("gone") is None
    assert [job.job_id for job in queues.claim("w", queues=(name,), limit=9)] == [kept]
    assert not queues.listen((name,), 0)
    assert queues.enqueue("task", {}, queue=name, dedupe_key="gone") is not None


def test_expiry_in_the_headers_only_as_a_point_in_time(queues: JobQueue, name: str, module_database: Database) -> None:
    at = dt.datetime(2100, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    ids = [put(queues, name, expires=at, run_after=at), put(queues, name, expires=60.0)]
    rows = execute(
        module_database, "select headers, properties from pgbroker.jobs where job_id = any (%s) order by 1", ids
    )
    expiries = [json.loads(headers)["expires"] for headers, _ in rows]
    assert sorted(map(str, expiries)) == ["2100-01-01T10:00:00+00:00", "None"]
    assert {json.loads(headers)["eta"] for headers, _ in rows} == {None}
    assert json.loads(rows[0][1]).keys() == {"correlation_id", "reply_to", "delivery_mode", "priority"}


# -- settling --------------------------------------------------------------------------------------------


def test_only_the_holder_settles(queues: JobQueue, name: str, module_database: Database) -> None:
    job_id = put(queues, name)
    job = take(queues, name, "alice")
    claim = job.claim
    assert claim is not None
    for worker, token in (("bob", None), ("alice", claim + 1), ("bob", claim), ("alice", 0), ("alice", 2**70)):
        assert queues.complete(job_id, worker, claim=token) is False
        assert queues.fail(job_id, worker, "no", claim=token) is None
    expire_lease(module_database, job_id)
    assert job_id in queues.reap()
    assert queues.complete(job_id, "alice", claim=claim) is False
    again = take(queues, name, "alice")
    assert again.claim != claim
    assert queues.complete(job_id, "alice", claim=claim) is False
    assert queues.fail(job_id, "alice", "late", claim=claim) is None
    assert queues.complete(job_id, "alice", claim=again.claim) is True


def test_fail_backs_off_and_buries(queues: JobQueue, name: str) -> None:
    job_id = put(queues, name, max_attempts=3, dedupe_key=name)
    take(queues, name)
    assert queues.fail(job_id, "w", ValueError("bad\0 \ud800")) == "PENDING"
    job = queues.get(job_id)
    assert job is not None
    assert job.run_after is not None
    assert 3 < (job.run_after - dt.datetime.now(UTC)).total_seconds() < 7
    assert job.last_error == "ValueError: bad\\x00 \\ud800"
    assert queues.requeue(job_id) is None
    assert queues.cancel(job_id) == job_id


def test_a_dead_job_lives_again(queues: JobQueue, name: str) -> None:
    job_id = put(queues, name, max_attempts=2, dedupe_key=name)
    for expected in ("PENDING", "DEAD"):
        take(queues, name)
        assert queues.fail(job_id, "w", "sorry", backoff_seconds=0) == expected
    dead = queues.get(job_id)
    assert dead is not None
    assert (dead.status, dead.attempts, dead.last_error, dead.claim) == ("DEAD", 2, "sorry", None)
    assert dead.finished_at is not None
    assert queues.stats()[name].dead == 1
    assert queues.find_active(name) is None
    assert queues.cancel(job_id) is None
    assert queues.claim("w", queues=(name,)) is None

    assert queues.requeue(job_id) == job_id
    alive = queues.get(job_id)
    assert alive is not None
    assert (alive.status, alive.attempts, alive.last_error, alive.payload) == ("PENDING", 0, "sorry", {})
    assert queues.requeue(job_id) is None
    assert take(queues, name).attempts == 1


def bury(jobs: JobQueue, queue: str, **options: Any) -> int:
    job_id = put(jobs, queue, max_attempts=1, **options)
    take(jobs, queue)
    assert jobs.fail(job_id, "w", "x") == "DEAD"
    return job_id


def test_requeue_while_the_key_is_taken(queues: JobQueue, name: str) -> None:
    buried = bury(queues, name, dedupe_key="k")
    holder = put(queues, name, dedupe_key="k")
    with pytest.raises(DuplicateJob) as caught:
        queues.requeue(buried)
    job = queues.get(holder)
    assert job is not None
    assert (caught.value.job_id, caught.value.task_id) == (holder, job.task_id)
    assert status(queues, buried) == "DEAD"
    assert queues.cancel(holder) == holder
    assert queues.requeue(buried) == buried


def test_requeue_past_an_expired_holder(queues: JobQueue, name: str) -> None:
    buried = bury(queues, name, dedupe_key="k")
    holder = put(queues, name, dedupe_key="k", expires=-1)
    assert queues.requeue(buried) == buried
    assert status(queues, holder) == "CANCELLED"


def test_requeue_waits_for_a_holder_that_is_ending(queues: JobQueue, name: str, module_database: Database) -> None:
    buried = bury(queues, name, dedupe_key="k")
    with closing(module_database.connect(autocommit=False)) as other, other.cursor() as cursor:
        cursor.execute("select pgbroker.enqueue('task', queue => %s, dedupe_key => 'k')", [name])
        results: list[int | None] = []
        thread = threading.Thread(target=lambda: results.append(queues.requeue(buried)))
        thread.start()
        wait_until(
            lambda: execute(
                module_database,
                "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()",
            )
        )
        other.rollback()
        thread.join(10)
    assert results == [buried]


def test_cancel(queues: JobQueue, name: str, module_database: Database) -> None:
    job_id = put(queues, name)
    assert queues.cancel(job_id) == job_id
    assert queues.cancel(job_id) is None
    cancelled = queues.get(job_id)
    assert cancelled is not None
    assert (cancelled.status, cancelled.last_error) == ("CANCELLED", "cancelled")
    told = execute(module_database, "select outcome from pgbroker.outcome_outbox where job_id = %s", job_id)
    assert told == [("REVOKED",)]
    running = put(queues, name)
    take(queues, name)
    assert queues.cancel(running) is None
    assert status(queues, running) == "RUNNING"


@pytest.mark.parametrize("job_id", [10**12, 0, -1, 2**63, -(2**70)])
def test_unknown_jobs(queues: JobQueue, job_id: int) -> None:
    assert queues.get(job_id) is None
    assert queues.complete(job_id, "w") is False
    assert queues.fail(job_id, "w", "x") is None
    assert queues.requeue(job_id) is None
    assert queues.cancel(job_id) is None


def test_leases(queues: JobQueue, name: str, module_database: Database) -> None:
    unstarted_loss, buried = put(queues, name, priority=9), put(queues, name, max_attempts=1)
    worker = f"w-{name}"
    held = [job.job_id for job in queues.claim(worker, queues=(name,), limit=2, lease_seconds=7)]
    assert held == [unstarted_loss, buried]
    assert queues.renew("nobody", 60) == 0
    assert queues.renew(worker, 100) == 2
    job = queues.get(buried)
    assert job is not None
    assert job.lease_until is not None
    assert 90 < (job.lease_until - dt.datetime.now(UTC)).total_seconds() < 110
    assert not set(held) & set(queues.reap())
    for job_id in held:
        expire_lease(module_database, job_id)
    assert set(held) <= set(queues.reap())
    assert not set(held) & set(queues.reap())
    assert queues.renew(worker, 60) == 0
    assert status(queues, unstarted_loss) == "PENDING"
    assert status(queues, buried) == "DEAD"
    for job_id in (unstarted_loss, buried):
        lost = queues.get(job_id)
        assert lost is not None
        assert "lease-expired reclaim" in (lost.last_error or "")


# -- dedupe ----------------------------------------------------------------------------------------------


def test_dedupe_keys(queues: JobQueue, name: str) -> None:
    first = put(queues, name, dedupe_key=name)
    assert queues.enqueue("task", {}, queue=name, dedupe_key=name) is None
    other = put(queues, f"{name}-2", dedupe_key=name)
    active = queues.find_active(name)
    assert active is not None
    assert active.job_id == first
    elsewhere = queues.find_active(name, queue=f"{name}-2")
    assert elsewhere is not None
    assert elsewhere.job_id == other
    assert queues.find_active(name, queue="nowhere") is None
    assert queues.find_active("never used") is None
    take(queues, name)
    assert queues.enqueue("task", {}, queue=name, dedupe_key=name) is None
    assert queues.complete(first, "w")
    active = queues.find_active(name)
    assert active is not None
    assert active.job_id == other
    assert queues.enqueue("task", {}, queue=name, dedupe_key=name) is not None


def test_a_key_held_by_an_open_transaction(module_database: Database, name: str) -> None:
    with JobQueue(module_database.url, dedupe_wait_seconds=0.3) as jobs:
        put(jobs, name)  # declares
        with closing(module_database.connect(autocommit=False)) as other, other.cursor() as cursor:
            cursor.execute("select pgbroker.enqueue('task', queue => %s, dedupe_key => 'k')", [name])
            with pytest.raises(StatementTimeout):
                jobs.enqueue("task", {}, queue=name, dedupe_key="k")
            other.rollback()
        assert jobs.enqueue("task", {}, queue=name, dedupe_key="k") is not None


# -- bodies ----------------------------------------------------------------------------------------------


def test_ten_megabytes(queues: JobQueue, name: str) -> None:
    payload = {"text": "ä" * 5_000_000}
    job_id = queues.enqueue("task", payload, queue=name)
    job = take(queues, name)
    assert job.job_id == job_id
    assert job.payload == payload


@pytest.mark.parametrize(
    ("content_type", "encoding", "headers", "body"),
    [
        ("application/x-python-serialize", "binary", "{}", b"cos\nsystem\n(S'false'\ntR."),
        ("application/json", "utf-8", "{}", b'{"args": [], "kwargs": {}}'),
        ("application/json", "utf-8", "{}", b"[[], [], {}]"),
        ("application/json", "utf-8", "{}", b"[{}, {}, {}]"),
        ("application/json", "utf-8", "{}", b"[[], {}]"),
        ("application/json", "utf-8", "{}", b"7"),
        ("application/json", "utf-8", "{}", b"\xff\0"),
        ("application/json", "utf-16", "{}", b"[[], {}, {}]"),
        ("application/json", "utf-8", '{"compression": "application/x-gzip"}', b"[[], {}, {}]"),
        ("application/json", "utf-8", None, b"[" * 100_000),
        (None, None, None, b""),
    ],
)
def test_bodies_that_are_not_read(
    queues: JobQueue, name: str, module_database: Database, content_type: Any, encoding: Any, headers: Any, body: bytes
) -> None:
    job_id = put(queues, name)
    execute(
        module_database,
        "update pgbroker.jobs_live set content_type = %s, content_encoding = %s, headers = %s, body = %s"
        " where job_id = %s",
        content_type,
        encoding,
        headers,
        body,
        job_id,
    )
    job = take(queues, name)
    assert (job.payload, job.args, job.raw) == ({}, [], body)


def test_celery_reads_what_is_enqueued_and_the_other_way_round(
    queues: JobQueue, name: str, module_database: Database
) -> None:
    from celery import Celery
    from celery.worker.request import Request
    from kombu import serialization
    from kombu.message import Message

    app = Celery("test", broker="memory://", set_as_current=False)
    ran: list[Any] = []

    @app.task(name="shop.ship", shared=False)  # type: ignore[untyped-decorator]
    def ship(*args: Any, **kwargs: Any) -> None:
        ran.append((args, kwargs))

    queues.enqueue("shop.ship", {"order": 7, "text": "ü"}, queue=name, priority=4)
    columns = "content_type, content_encoding, headers, properties, body, task_id"
    content_type, encoding, headers, properties, body, task_id = execute(
        module_database, f"select {columns} from pgbroker.jobs where queue = %s", name
    )[0]
    message = Message(
        body=bytes(body),
        content_type=content_type,
        content_encoding=encoding,
        headers=json.loads(headers),
        properties=json.loads(properties),
        accept={"application/json"},
    )
    request = Request(message, app=app)
    assert (request.id, request.name, request.correlation_id) == (task_id, "shop.ship", task_id)
    assert request.eta is None
    assert request.expires is None
    assert request.delivery_info["priority"] == 4
    request.execute()
    assert ran == [((), {"order": 7, "text": "ü"})]
    expected = app.amqp.as_task_v2(task_id, "shop.ship", (), {"order": 7, "text": "ü"})
    assert json.loads(headers).keys() == expected.headers.keys()
    own = {"origin"}
    assert {k: v for k, v in json.loads(headers).items() if k not in own} == {
        k: v for k, v in expected.headers.items() if k not in own
    }
    assert json.loads(bytes(body)) == json.loads(json.dumps(expected.body))

    published = app.amqp.as_task_v2("id-1", "shop.ship", (1, "zwei"), {"three": [3]})
    content_type, encoding, text = serialization.dumps(published.body, serializer="json")
    execute(
        module_database,
        "update pgbroker.jobs_live set content_type = %s, content_encoding = %s, body = %s where queue = %s",
        content_type,
        encoding,
        text.encode(),
        name,
    )
    job = take(queues, name)
    assert (job.args, job.payload, job.raw) == ([1, "zwei"], {"three": [3]}, None)


# -- bad arguments ---------------------------------------------------------------------------------------

CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (TypeError, {"task": None}),
        (ValueError, {"task": ""}),
        (ValueError, {"task": "a\0b"}),
        (TypeError, {"payload": None}),
        (TypeError, {"payload": [1]}),
        (TypeError, {"payload": {1: 2}}),
        (TypeError, {"payload": {"a": object()}}),
        (TypeError, {"payload": {"a": dt.datetime(2020, 1, 1)}}),
        (ValueError, {"payload": {"a": float("nan")}}),
        (ValueError, {"payload": CIRCULAR}),
        (ValueError, {"payload": {"a": DEEP}}),
        (TypeError, {"queue": None}),
        (TypeError, {"queue": b"celery"}),
        (ValueError, {"queue": ""}),
        (ValueError, {"queue": "a\0"}),
        (ValueError, {"queue": "\ud800"}),
        (ValueError, {"queue": "ü" * 128}),
        (TypeError, {"priority": "high"}),
        (TypeError, {"priority": 1.5}),
        (TypeError, {"priority": None}),
        (TypeError, {"priority": True}),
        (TypeError, {"run_after": "tomorrow"}),
        (TypeError, {"run_after": dt.date(2020, 1, 1)}),
        (TypeError, {"run_after": True}),
        (ValueError, {"run_after": float("nan")}),
        (ValueError, {"run_after": float("inf")}),
        (ValueError, {"run_after": 1e10}),
        (TypeError, {"expires": "2020-01-01"}),
        (ValueError, {"expires": dt.timedelta.max}),
        (TypeError, {"dedupe_key": 7}),
        (ValueError, {"dedupe_key": ""}),
        (ValueError, {"dedupe_key": "k" * 2001}),
        (ValueError, {"max_attempts": 0}),
        (ValueError, {"max_attempts": 32768}),
        (TypeError, {"max_attempts": 2.0}),
    ],
)
def test_bad_enqueue(queues: JobQueue, name: str, error: type[Exception], arguments: dict[str, Any]) -> None:
    arguments = {"task": "task", "payload": {}, "queue": name, **arguments}
    task, payload = arguments.pop("task"), arguments.pop("payload")
    before = queues.stats()
    with pytest.raises(error):
        queues.enqueue(task, payload, **arguments)
    assert queues.stats().keys() == before.keys()


def test_longest_names(queues: JobQueue) -> None:
    queue = uuid.uuid4().hex[:31] + "ü" * 112
    # as many different characters as possible, so that the index entry cannot be compressed
    key = "".join(chr(0x4E00 + n) for n in range(666)) + "xx"
    assert (len(queue.encode()), len(key.encode())) == (255, 2000)
    job_id = put(queues, queue, dedupe_key=key)
    assert queues.enqueue("task", {}, queue=queue, dedupe_key=key) is None
    assert not queues.listen(("a" * 255,), 0.05)
    assert queues.listen((queue,), 5)
    assert take(queues, queue, "w" * 1000).job_id == job_id


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ValueError, {"limit": 0}),
        (ValueError, {"limit": -1}),
        (ValueError, {"limit": 10**9}),
        (TypeError, {"limit": 1.0}),
        (TypeError, {"limit": True}),
        (ValueError, {"queues": ()}),
        (ValueError, {"queues": ("",)}),
        (TypeError, {"queues": (None,)}),
        (TypeError, {"queues": 7}),
        (ValueError, {"lease_seconds": 0}),
        (ValueError, {"lease_seconds": float("nan")}),
        (TypeError, {"lease_seconds": "60"}),
        (TypeError, {"worker": None}),
        (ValueError, {"worker": ""}),
        (ValueError, {"worker": "w\0"}),
    ],
)
def test_bad_claim(queues: JobQueue, name: str, error: type[Exception], arguments: dict[str, Any]) -> None:
    job_id = put(queues, name)
    arguments = {"worker": "w", "queues": (name,), **arguments}
    with pytest.raises(error):
        queues.claim(arguments.pop("worker"), **arguments)
    assert status(queues, job_id) == "PENDING"


def test_other_bad_arguments(queues: JobQueue, name: str) -> None:
    job_id = put(queues, name)
    take(queues, name)
    bad: list[tuple[type[Exception], Callable[[], Any]]] = [
        (TypeError, lambda: queues.complete("1", "w")),  # type: ignore[arg-type]
        (TypeError, lambda: queues.complete(True, "w")),
        (TypeError, lambda: queues.complete(job_id, "w", object())),
        (ValueError, lambda: queues.complete(job_id, "w", float("inf"))),
        (TypeError, lambda: queues.complete(job_id, "w", claim="1")),  # type: ignore[arg-type]
        (ValueError, lambda: queues.complete(job_id, "")),
        (TypeError, lambda: queues.fail(job_id, "w", 7)),  # type: ignore[arg-type]
        (ValueError, lambda: queues.fail(job_id, "w", "x", backoff_seconds=-1)),
        (TypeError, lambda: queues.fail(job_id, "w", "x", backoff_seconds="1")),  # type: ignore[arg-type]
        (ValueError, lambda: queues.renew("w", 0)),
        (TypeError, lambda: queues.get(None)),  # type: ignore[arg-type]
        (TypeError, lambda: queues.get(1.0)),  # type: ignore[arg-type]
        (TypeError, lambda: queues.requeue("x")),  # type: ignore[arg-type]
        (TypeError, lambda: queues.cancel(None)),  # type: ignore[arg-type]
        (TypeError, lambda: queues.find_active(None)),  # type: ignore[arg-type]
        (ValueError, lambda: queues.listen((name,), -1)),
        (TypeError, lambda: queues.listen((name,), None)),  # type: ignore[arg-type]
        (ValueError, lambda: queues.listen((), 1)),
    ]
    for error, call in bad:
        with pytest.raises(error):
            call()
    assert status(queues, job_id) == "RUNNING"


def test_transient_queues_take_no_jobs(queues: JobQueue, name: str, module_database: Database) -> None:
    routing = routing_for("pgbroker")
    shared = pool.pool_for(queues.options)
    shared.query(*routing.declare_queue(name, QueueTraits(is_transient=True, auto_delete=True)))
    shared.query(*routing.declare_queue(f"{name}-own", QueueTraits(is_transient=True, owner="somebody")))
    with pytest.raises(ValueError, match="transient"):
        queues.enqueue("task", {}, queue=name)
    with pytest.raises(ValueError, match="transient"):
        queues.enqueue("task", {}, queue=f"{name}-own")
    assert execute(module_database, "select job_id from pgbroker.jobs where queue like %s", f"{name}%") == []


# -- stats -----------------------------------------------------------------------------------------------


def test_stats(queues: JobQueue, name: str, module_database: Database) -> None:
    idle = f"{name}-idle"
    assert name not in queues.stats()
    queues.cancel(put(queues, idle))
    bury(queues, name)
    put(queues, name)
    take(queues, name)
    put(queues, name, run_after=100)
    put(queues, name, expires=-5)
    old = put(queues, name)
    execute(
        module_database,
        "update pgbroker.jobs_live set run_after = run_after - interval '1 hour',"
        " enqueued_at = enqueued_at - interval '1 hour' where job_id = %s",
        old,
    )
    put(queues, name, run_after=-7200)
    stats = queues.stats()
    assert stats[idle] == pgbroker.QueueStats(queue=idle)
    counts = stats[name]
    assert (counts.queue, counts.ready, counts.scheduled, counts.running, counts.dead) == (name, 2, 1, 1, 1)
    assert 3600 <= counts.oldest_ready_seconds < 3660
    assert counts["ready"] == 2


# -- waiting ---------------------------------------------------------------------------------------------


class Listening:
    """A call of ``listen`` in a thread, with what it returned or raised and how long it took."""

    def __init__(self, jobs: JobQueue, queue: str, timeout: float) -> None:
        self.result: bool | None = None
        self.error: BaseException | None = None
        self.seconds = 0.0

        def run() -> None:
            began = time.monotonic()
            try:
                self.result = jobs.listen((queue,), timeout)
            except BaseException as error:
                self.error = error
            self.seconds = time.monotonic() - began

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def join(self) -> bool | None:
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.result


def sleepers(database: Database, queue: str) -> int:
    return int(execute(database, "select count(*) from pgbroker.sleepers where queue = %s", queue)[0][0])


def test_listen_times_out(queues: JobQueue, name: str, module_database: Database) -> None:
    began = time.monotonic()
    assert queues.listen((name,), 0.3) is False
    assert 0.3 <= time.monotonic() - began < 2
    assert sleepers(module_database, name) == 0


def test_listen_sees_what_is_ready(queues: JobQueue, name: str) -> None:
    put(queues, name)
    for timeout in (0, 20):
        began = time.monotonic()
        assert queues.listen((f"{name}-empty", name), timeout) is True
        assert time.monotonic() - began < 2


def test_listen_is_woken(queues: JobQueue, name: str, module_database: Database) -> None:
    for publish in (
        lambda: put(queues, name),
        lambda: execute(module_database, "select pgbroker.enqueue('task', queue => %s)", name),
    ):
        listening = Listening(queues, name, 20)
        wait_until(lambda: sleepers(module_database, name))
        publish()
        assert listening.join() is True
        assert listening.seconds < 3
        assert sleepers(module_database, name) == 0
        take(queues, name)


def test_listen_ignores_what_cannot_be_claimed(queues: JobQueue, name: str, module_database: Database) -> None:
    put(queues, name, expires=-1)
    put(queues, name, run_after=60)
    assert queues.listen((name,), 0.2) is False
    execute(module_database, "update pgbroker.queues set paused_at = now() where name = %s", name)
    put(queues, name)
    assert queues.listen((name,), 0.2) is False
    assert queues.claim("w", queues=(name,)) is None


def test_listen_waits_for_a_job_scheduled_meanwhile(queues: JobQueue, name: str, module_database: Database) -> None:
    listening = Listening(queues, name, 20)
    wait_until(lambda: sleepers(module_database, name))
    put(queues, name, run_after=1.0)
    assert listening.join() is True
    assert 0.9 < listening.seconds < 4
    take(queues, name)


def test_one_publish_wakes_one_of_several(queues: JobQueue, name: str, module_database: Database) -> None:
    listening = [Listening(queues, name, 8) for _ in range(3)]
    wait_until(lambda: sleepers(module_database, name) == 3)
    put(queues, name)
    wait_until(lambda: sum(not one.thread.is_alive() for one in listening) == 1)
    assert sleepers(module_database, name) == 2
    take(queues, name)
    assert sum(one.join() is True for one in listening) == 1


def test_a_claim_that_leaves_some_wakes_the_next(queues: JobQueue, name: str, module_database: Database) -> None:
    listening = [Listening(queues, name, 20) for _ in range(2)]
    wait_until(lambda: sleepers(module_database, name) == 2)
    with closing(module_database.connect()) as connection, connection.cursor() as cursor:
        # as if two publishes had met the same sleeper
        for _ in range(2):
            cursor.execute(
                "insert into pgbroker.jobs_live (run_after, queue, body) values (clock_timestamp(), %s, '')", [name]
            )
    take(queues, name)
    wait_until(lambda: any(not one.thread.is_alive() for one in listening))
    take(queues, name)
    put(queues, name)
    assert [one.join() for one in listening] == [True, True]


def backends(database: Database, like: str = "pgbroker listener%") -> list[int]:
    rows = execute(
        database,
        "select pid from pg_stat_activity where datname = current_database() and application_name like %s",
        like,
    )
    return [row[0] for row in rows]


def test_listen_survives_a_lost_connection(database: Database) -> None:
    with JobQueue(database.url, poll_interval=30) as jobs:
        put(jobs, "q")
        take(jobs, "q")
        listening = Listening(jobs, "q", 20)
        for _ in range(2):
            wait_until(lambda: sleepers(database, "q"))
            execute(database, "delete from pgbroker.sleepers")
            for pid in backends(database):
                execute(database, "select pg_terminate_backend(%s)", pid)
        wait_until(lambda: sleepers(database, "q"))
        put(jobs, "q")
        assert listening.join() is True
        assert listening.seconds < 10
        # and between two calls
        take(jobs, "q")
        for pid in backends(database, "pgbroker%"):
            execute(database, "select pg_terminate_backend(%s)", pid)
        wait_until(lambda: not backends(database, "pgbroker%"))
        assert jobs.listen(("q",), 0.2) is False
        assert put(jobs, "q")


def test_listen_raises_if_the_server_stays_away(database: Database) -> None:
    words = {**database.dsn, "host": "127.0.0.1", "port": "1"}
    url = f"pgbroker://{words['host']}:{words['port']}/{words['dbname']}"
    with JobQueue(url) as jobs:
        began = time.monotonic()
        with pytest.raises(DatabaseUnreachable):
            jobs.listen(("q",), 0.5)
        assert 0.4 < time.monotonic() - began < 5
        with pytest.raises(DatabaseUnreachable):
            jobs.enqueue("task", {})


def test_polling_only(database: Database) -> None:
    with JobQueue(database.url, notify="false", poll_interval=0.1) as jobs:
        listening = Listening(jobs, "q", 20)
        wait_until(lambda: backends(database, "pgbroker%"))
        put(jobs, "q")
        assert listening.join() is True
        assert listening.seconds < 5
        assert sleepers(database, "q") == 0
        assert backends(database) == []
        take(jobs, "q")
        put(jobs, "q", run_after=0.5)
        with JobQueue(database.url, notify=False, poll_interval=60) as slow:
            began = time.monotonic()
            assert slow.listen(("q",), 20) is True
            assert 0.3 < time.monotonic() - began < 4


def test_listen_url(database: Database) -> None:
    listen_url = database.server.url(database.name, application_name="direct-line")
    if database.server.dsn.get("password"):
        pytest.skip("listen_url takes no password")
    with JobQueue(database.url, listen_url=listen_url, poll_interval=30) as jobs:
        jobs.stats()
        listening = Listening(jobs, "q", 20)
        wait_until(lambda: sleepers(database, "q"))
        assert len(backends(database, "direct-line")) == 1
        put(jobs, "q")
        assert listening.join() is True
        assert listening.seconds < 5


def test_close_ends_listen(database: Database) -> None:
    for options in ({}, {"notify": False, "poll_interval": 60}):
        jobs = JobQueue(database.url, **options)
        jobs.stats()
        listening = Listening(jobs, "q", 25)
        if not options:
            wait_until(lambda: sleepers(database, "q"))
        jobs.close()
        assert listening.join() is False
        assert listening.seconds < 10
        wait_until(lambda: not backends(database, "pgbroker%"))


# -- the object itself -----------------------------------------------------------------------------------


def test_closing(database: Database) -> None:
    with JobQueue(database.url) as jobs:
        assert put(jobs, "celery")
        assert jobs.listen(("celery",), 1)
    wait_until(lambda: not backends(database, "pgbroker%"))
    jobs.close()
    for call in (lambda: jobs.claim("w"), lambda: put(jobs, "x"), jobs.stats, lambda: jobs.listen(("x",), 1)):
        with pytest.raises(PgBrokerError, match="closed"):
            call()


def test_repr_and_options(database: Database) -> None:
    jobs = JobQueue("pgbroker://joe:secret@db.example/shop", lease_seconds=5)
    assert "secret" not in repr(jobs)
    assert "joe" in repr(jobs)
    assert jobs.options.lease_seconds == 5
    assert JobQueue(jobs.options, max_attempts=2).options.max_attempts == 2
    with pytest.raises(OptionError):
        JobQueue("pgbroker://h/d", lease=5)
    with pytest.raises(OptionError):
        JobQueue(jobs.options, lease=5)
    with pytest.raises(TypeError):
        JobQueue(None)  # type: ignore[arg-type]
    with JobQueue(Options.from_url(database.url), max_attempts=1, lease_seconds=7) as own:
        put(own, "celery")
        job = take(own, "celery")
        assert job.max_attempts == 1
        assert job.lease_until is not None
        assert job.claimed_at is not None
        assert job.lease_until - job.claimed_at == dt.timedelta(seconds=7)


def test_another_schema(database: Database) -> None:
    with JobQueue(database.url, schema="order") as one, JobQueue(database.url) as two:
        job_id = put(one, "celery", dedupe_key="k")
        assert two.get(job_id) is None
        assert put(two, "celery", dedupe_key="k")
        assert one.listen(("celery",), 5)
        assert one.stats()["celery"].ready == 1
        assert take(one, "celery").dedupe_key == "k"


def test_a_fork_uses_connections_of_its_own(queues: JobQueue, name: str) -> None:
    put(queues, name)
    assert queues.listen((name,), 1)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            put(queues, name)
            if queues.listen((name,), 5) and take(queues, name, "child").job_id:
                code = 0
        os._exit(code)
    _, wait_status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(wait_status) == 0
    assert take(queues, name).worker == "w"
    assert queues.listen((name,), 0.1) is False


def test_many_threads(queues: JobQueue, name: str) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                put(queues, name)
                job = queues.claim(f"w{number}", queues=(name,))
                assert job is None or queues.complete(job.job_id, f"w{number}", claim=job.claim)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    counts = queues.stats()[name]
    assert (counts.running, counts.dead) == (0, 0)
    assert counts.ready == len(queues.claim("w", queues=(name,), limit=100))
