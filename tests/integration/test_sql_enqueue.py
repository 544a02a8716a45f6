"""``pgbroker.enqueue``: tasks from SQL, from transactions and from triggers."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg2
import psycopg2.errors
import pytest

from pgbroker import Job, JobQueue

if TYPE_CHECKING:
    from conftest import Database

Run = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def jobs(module_database: Database) -> Iterator[JobQueue]:
    with JobQueue(module_database.url, poll_interval=30) as queue:
        queue.stats()
        yield queue


@pytest.fixture
def name() -> str:
    """A queue of the test's own."""
    return f"q-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def run(jobs: JobQueue, module_database: Database) -> Iterator[Run]:
    """Runs one statement, in autocommit."""
    with closing(module_database.connect()) as connection, connection.cursor() as cursor:

        def execute(sql: str, *args: Any) -> list[tuple[Any, ...]]:
            cursor.execute(sql, args)
            return cursor.fetchall() if cursor.description else []

        yield execute


def claim(jobs: JobQueue, queue: str) -> Job:
    job = jobs.claim("w", queues=(queue,))
    assert isinstance(job, Job)
    return job


def test_signature(run: Run) -> None:
    arguments, result = run(
        "select pg_get_function_arguments(oid), pg_get_function_result(oid) from pg_proc"
        " where pronamespace = 'pgbroker'::regnamespace and proname = 'enqueue'"
    )[0]
    assert arguments.replace(" timestamp with time zone", " timestamptz").split(", ") == [
        "task text",
        "kwargs jsonb DEFAULT '{}'::jsonb",
        "args jsonb DEFAULT '[]'::jsonb",
        "queue text DEFAULT 'celery'::text",
        "priority integer DEFAULT 0",
        "eta timestamptz DEFAULT NULL::timestamp with time zone",
        "expires timestamptz DEFAULT NULL::timestamp with time zone",
        "dedupe_key text DEFAULT NULL::text",
        "task_id text DEFAULT NULL::text",
    ]
    assert result == "text"


def test_defaults(jobs: JobQueue, run: Run) -> None:
    task_id = run("select pgbroker.enqueue('shop.ship')")[0][0]
    assert str(uuid.UUID(task_id)) == task_id
    job = claim(jobs, "celery")
    assert (job.task_id, job.task_name, job.queue, job.priority, job.max_attempts) == (
        task_id,
        "shop.ship",
        "celery",
        0,
        5,
    )
    assert (job.args, job.payload, job.raw, job.expires_at, job.dedupe_key) == ([], {}, None, None, None)


def test_arguments(jobs: JobQueue, run: Run, name: str) -> None:
    task_id = run(
        "select pgbroker.enqueue('shop.ship', '{\"order\": 7, \"ü\": [null, 1.50, \"a''b\\n\"]}', '[1, {\"x\": true}]',"
        " %s, 12, task_id => 'own-id', dedupe_key => 'k', expires => '2100-01-01 00:00+02')",
        name,
    )[0][0]
    assert task_id == "own-id"
    job = claim(jobs, name)
    assert (job.task_id, job.priority, job.dedupe_key) == ("own-id", 9, "k")
    assert job.payload == {"order": 7, "ü": [None, 1.5, "a'b\n"]}
    assert job.args == [1, {"x": True}]
    assert job.expires_at == dt.datetime(2099, 12, 31, 22, tzinfo=dt.UTC)


def test_celery_understands_it(jobs: JobQueue, run: Run, name: str) -> None:
    from celery import Celery
    from celery.worker.request import Request
    from kombu.message import Message

    app = Celery("test", broker="memory://", set_as_current=False)
    ran: list[Any] = []

    @app.task(name="shop.ship", bind=True, shared=False)  # type: ignore[untyped-decorator]
    def ship(self: Any, *args: Any, **kwargs: Any) -> None:
        ran.append((args, kwargs, self.request.root_id, self.request.retries, self.request.timelimit))

    run(
        "select pgbroker.enqueue('shop.ship', '{\"order\": 7}', '[\"ü\"]', queue => %s, priority => -5,"
        " eta => now() - interval '1 hour', expires => now() + interval '1 hour', task_id => 'id-1')",
        name,
    )
    content_type, encoding, headers, properties, body = run(
        "select content_type, content_encoding, headers, properties, body from pgbroker.jobs where queue = %s", name
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
    assert (request.id, request.name, request.correlation_id, request.reply_to) == ("id-1", "shop.ship", "id-1", "")
    assert request.eta is None
    left = request.expires - dt.datetime.now(dt.UTC)
    assert dt.timedelta(minutes=59) < left < dt.timedelta(minutes=61)
    assert request.delivery_info["priority"] == 0
    request.execute()
    assert ran == [(("ü",), {"order": 7}, "id-1", 0, [None, None])]

    expected = app.amqp.as_task_v2("id-1", "shop.ship", ["ü"], {"order": 7})
    ours = json.loads(headers)
    assert ours.keys() == expected.headers.keys()
    own = {"origin", "expires", "argsrepr", "kwargsrepr"}
    assert {k: v for k, v in ours.items() if k not in own} == {
        k: v for k, v in expected.headers.items() if k not in own
    }
    assert json.loads(properties) == {**expected.properties, "delivery_mode": 2, "priority": 0}
    assert json.loads(bytes(body)) == json.loads(json.dumps(expected.body))


def test_eta(jobs: JobQueue, run: Run, name: str) -> None:
    run("select pgbroker.enqueue('t', queue => %s, eta => now() + interval '1.5 seconds')", name)
    assert jobs.claim("w", queues=(name,)) is None
    assert jobs.listen((name,), 10)
    claim(jobs, name)
    run("select pgbroker.enqueue('t', queue => %s, eta => 'infinity', expires => 'infinity')", name)
    headers = json.loads(run("select headers from pgbroker.jobs where queue = %s and status = 'PENDING'", name)[0][0])
    assert (headers["eta"], headers["expires"]) == (None, None)


def test_long_arguments_are_cut_in_the_headers(run: Run, name: str) -> None:
    run("select pgbroker.enqueue('t', jsonb_build_object('text', repeat('ä', 5000)), queue => %s)", name)
    headers, size = run("select headers, length(body) from pgbroker.jobs where queue = %s", name)[0]
    assert len(json.loads(headers)["kwargsrepr"]) <= 1024
    assert size > 10_000


def test_duplicates(jobs: JobQueue, run: Run, name: str) -> None:
    sql = "select pgbroker.enqueue('t', queue => %s, dedupe_key => 'k')"
    first = run(sql, name)[0][0]
    assert run(sql, name)[0][0] == first
    assert run(sql, f"{name}-2")[0][0] != first
    job = claim(jobs, name)
    assert run(sql, name)[0][0] == first
    assert jobs.enqueue("t", {}, queue=name, dedupe_key="k") is None
    assert jobs.complete(job.job_id, "w")
    second = run(sql, name)[0][0]
    assert second not in (None, first)
    assert run("select count(*) from pgbroker.jobs where queue = %s", name)[0][0] == 1


def test_in_a_transaction(jobs: JobQueue, module_database: Database, name: str) -> None:
    with closing(module_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        cursor.execute("set local synchronous_commit = remote_write; set local lock_timeout = '7s'")
        cursor.execute("select pgbroker.enqueue('t', queue => %s, dedupe_key => 'k')", [name])
        first = cursor.fetchone()
        cursor.execute("select pgbroker.enqueue('t', queue => %s, dedupe_key => 'k')", [name])
        assert cursor.fetchone() == first
        cursor.execute("select current_setting('synchronous_commit'), current_setting('lock_timeout')")
        assert cursor.fetchone() == ("remote_write", "7s")
        assert jobs.claim("w", queues=(name,)) is None
        # nobody who declares the new queue waits for this transaction
        began = time.monotonic()
        assert jobs.enqueue("t", {}, queue=name) is not None
        assert time.monotonic() - began < 5
        connection.rollback()
        assert jobs.find_active("k", queue=name) is None
        cursor.execute("select pgbroker.enqueue('t', queue => %s, dedupe_key => 'k')", [name])
        connection.commit()
    assert jobs.find_active("k", queue=name) is not None


def test_a_commit_wakes_those_who_sleep(jobs: JobQueue, module_database: Database, name: str, run: Run) -> None:
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(jobs.listen((name,), 20))) for _ in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10
    while run("select count(*) from pgbroker.sleepers where queue = %s", name)[0][0] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with closing(module_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        cursor.execute("select pgbroker.enqueue('t', queue => %s)", [name])
        threads[0].join(0.5)
        assert results == []
        began = time.monotonic()
        connection.commit()
        for thread in threads:
            thread.join(20)
    assert results == [True, True]
    assert time.monotonic() - began < 3


def test_serializable(module_database: Database, run: Run, name: str) -> None:
    with closing(module_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        connection.set_session(isolation_level="SERIALIZABLE")
        cursor.execute("select count(*) from pgbroker.settings")
        holder = run("select pgbroker.enqueue('t', queue => %s, dedupe_key => 'k')", name)[0][0]
        with pytest.raises(psycopg2.errors.SerializationFailure):
            cursor.execute("select pgbroker.enqueue('t', queue => %s, dedupe_key => 'k')", [name])
        connection.rollback()
        cursor.execute("select pgbroker.enqueue('t', queue => %s, dedupe_key => 'k')", [name])
        assert cursor.fetchone() == (holder,)
        connection.rollback()


def test_from_a_trigger(jobs: JobQueue, run: Run, name: str) -> None:
    run("create table if not exists orders (id int primary key, state text)")
    run(
        "create or replace function ship() returns trigger language plpgsql as $$ begin perform pgbroker.enqueue("
        f"'shop.ship', jsonb_build_object('order', new.id), queue => '{name}', dedupe_key => 'order:' || new.id);"
        " return new; end $$"
    )
    run("create or replace trigger ship after insert or update on orders for each row execute function ship()")
    run("insert into orders select n, 'new' from generate_series(1, 3) n")
    run("update orders set state = 'paid'")
    assert [job.payload for job in jobs.claim("w", queues=(name,), limit=9)] == [{"order": n} for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("null", "task is empty"),
        ("''", "task is empty"),
        ("'t', '[]'", "kwargs must be a JSON object, not array"),
        ("'t', 'null'", "kwargs must be a JSON object, not null"),
        ("'t', null", "kwargs must be a JSON object, not NULL"),
        ("'t', '{}', '{}'", "args must be a JSON array, not object"),
        ("'t', args => null", "args must be a JSON array, not NULL"),
        ("'t', args => '\"x\"'", "args must be a JSON array, not string"),
        ("'t', queue => null", "queue is empty"),
        ("'t', queue => ''", "queue is empty"),
        ("'t', queue => repeat('ü', 128)", "longer than"),
        ("'t', dedupe_key => repeat('k', 2001)", "longer than"),
        ("'t', task_id => repeat('k', 256)", "longer than"),
        ("'t', dedupe_key => ''", "empty text"),
        ("'t', task_id => ''", "empty text"),
    ],
)
def test_errors(run: Run, arguments: str, message: str) -> None:
    before = run("select count(*) from pgbroker.jobs")
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match=message) as caught:
        run(f"select pgbroker.enqueue({arguments})")
    assert caught.value.diag.message_hint
    assert run("select count(*) from pgbroker.jobs") == before


def test_transient_queue(run: Run, name: str) -> None:
    run("select pgbroker.declare_queue(%s, null, true, null, true)", name)
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="transient"):
        run("select pgbroker.enqueue('t', queue => %s)", name)


def test_null_priority_and_clamping(jobs: JobQueue, run: Run, name: str) -> None:
    for priority in ("null", "-1", "5", "99"):
        run(f"select pgbroker.enqueue('t', queue => %s, priority => {priority})", name)
    assert [job.priority for job in jobs.claim("w", queues=(name,), limit=9)] == [9, 5, 0, 0]


def test_in_another_schema(database: Database) -> None:
    with JobQueue(database.url, schema="Order %'s") as jobs:
        jobs.stats()
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("""select "Order %'s".enqueue('t')""")
        assert jobs.claim("w") is not None
