"""When an id becomes an alias, when it counts as one, and how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
from celery import states

from pgbroker import DuplicateJob, JobQueue
from pgbroker.options import Options
from pgbroker.queue.store import Message, store_for
from pgbroker.queue.upkeep import Upkeep
from pgbroker.results import store as result_store

if TYPE_CHECKING:
    from .conftest import Calls, Run, WaitUntil


# -- our task class -------------------------------------------------------------------------------------


def test_only_an_id_that_somebody_may_know_becomes_an_alias(ours: Calls) -> None:
    live = ours.call()
    assert ours.call().id == live.id
    assert ours.aliases() == []
    with pytest.raises(DuplicateJob):
        ours.call(task_id=f"refused-{ours.key}", on_duplicate="raise")
    assert ours.aliases() == []
    given = ours.call(task_id=f"given-{ours.key}")
    assert (given.id, given.duplicate) == (live.id, True)
    assert ours.aliases() == [(f"given-{ours.key}", live.id)]
    ours.finish(live)
    assert ours.app.AsyncResult(f"given-{ours.key}").get(timeout=5) == "done"


def test_nobody_needs_one_from_sql_or_from_the_queue(plain: Calls, url: str) -> None:
    live = plain.call()
    sql = "select pgbroker.enqueue('a.plain', queue => %s, dedupe_key => %s, task_id => %s)"
    assert plain.run(sql, plain.key, plain.key, f"sql-{plain.key}") == [(live.id,)]
    with JobQueue(url) as queue:
        assert queue.enqueue("a.plain", {}, queue=plain.key, dedupe_key=plain.key) is None
    assert plain.aliases() == []


def test_the_same_task_published_twice_is_no_alias_of_itself(plain: Calls) -> None:
    chosen = f"chosen-{plain.key}"
    for _ in range(2):
        plain.call(task_id=chosen)
    assert plain.jobs() == [chosen]
    assert plain.aliases() == []


def test_a_repeated_duplicate_leaves_one_row(plain: Calls) -> None:
    live = plain.call()
    chosen = f"chosen-{plain.key}"
    for _ in range(3):
        plain.call(task_id=chosen)
    assert plain.aliases() == [(chosen, live.id)]


# -- exchanges ------------------------------------------------------------------------------------------


def declare(calls: Calls, *queues: str) -> None:
    calls.run("select pgbroker.declare_exchange(%s, 'direct')", calls.key)
    for queue in queues:
        calls.run("select pgbroker.declare_queue(%s)", queue)
        calls.run("select pgbroker.bind_queue(%s, %s, 'k')", calls.key, queue)


def test_a_duplicate_that_went_through_an_exchange(plain: Calls) -> None:
    declare(plain, plain.key)
    published = [plain.call(queue=None, exchange=plain.key, routing_key="k") for _ in range(2)]
    assert plain.aliases() == [(published[1].id, published[0].id)]
    plain.finish(published[0])
    assert published[1].get(timeout=5) == "done"


def test_a_duplicate_in_one_of_two_queues_is_a_job(plain: Calls) -> None:
    plain.call()
    declare(plain, plain.key, f"{plain.key}-2")
    published = plain.call(queue=None, exchange=plain.key, routing_key="k")
    assert plain.run("select queue from pgbroker.jobs_live where task_id = %s", published.id) == [(f"{plain.key}-2",)]
    assert plain.aliases() == []


# -- which one counts -----------------------------------------------------------------------------------


def publish(calls: Calls, database: Any, task_id: str, queue: str) -> None:
    """As a retry does it that goes to another queue."""
    message = Message(queue, task_id, "a.plain", dedupe_key=calls.key, headers='{"task": "a.plain"}', body=b"[]")
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(*store_for("pgbroker").publish(message, with_alias=True))


def test_an_alias_of_an_alias(plain: Calls, module_database: Any, wait_for: Any) -> None:
    """The live job is retried in another queue, and is a duplicate there; who waits already is told."""
    last = plain.call(queue=f"{plain.key}-2")
    middle, first = plain.call(), plain.call()
    waits = [wait_for(first), wait_for(middle)]
    publish(plain, module_database, middle.id, f"{plain.key}-2")
    assert plain.aliases() == [(first.id, middle.id), (middle.id, last.id)]
    plain.finish(middle, None, states.RETRY)
    plain.finish(last)
    assert [got() for got in waits] == ["done", "done"]
    late = plain.call()
    assert plain.aliases()[-1] == (late.id, middle.id)
    assert late.get(timeout=5) == "done"
    assert [first.state, middle.state, late.state] == [states.SUCCESS] * 3


def test_two_that_lead_to_each_other_end_nobody_up_in_a_circle(plain: Calls, run: Run) -> None:
    run("select pgbroker.add_alias(%s, %s)", f"a{plain.key}", f"b{plain.key}")
    run("select pgbroker.add_alias(%s, %s)", f"b{plain.key}", f"a{plain.key}")
    assert plain.app.AsyncResult(f"a{plain.key}").state == states.PENDING
    plain.app.backend.store_result(f"b{plain.key}", "own", states.SUCCESS)
    assert [plain.app.AsyncResult(f"{name}{plain.key}").result for name in "ab"] == ["own", "own"]


def test_a_result_of_its_own_counts(plain: Calls) -> None:
    live, twin = plain.call(), plain.call()
    plain.finish(live)
    plain.finish(twin, "own")
    assert plain.app.AsyncResult(twin.id).get(timeout=5) == "own"


def test_an_id_that_is_published_as_a_job_leads_no_further(plain: Calls, wait_for: Any) -> None:
    live = plain.call()
    chosen = f"chosen-{plain.key}"
    twin = plain.call(task_id=chosen)
    plain.finish(live)
    plain.cancel(live)
    plain.call(task_id=chosen)
    assert plain.jobs() == [chosen]
    assert twin.state == states.PENDING
    got = wait_for(twin)
    plain.finish(twin, "own")
    assert got() == "own"


# -- how long -------------------------------------------------------------------------------------------


def test_forget_removes_the_alias_only(plain: Calls) -> None:
    live, twin, other = plain.call(), plain.call(), plain.call()
    plain.finish(live)
    assert twin.get(timeout=5) == "done"
    twin.forget()
    assert plain.app.AsyncResult(twin.id).state == states.PENDING
    assert plain.app.AsyncResult(live.id).get(timeout=5) == "done"
    assert plain.app.AsyncResult(other.id).get(timeout=5) == "done"
    assert plain.aliases() == [(other.id, live.id)]


def check_at(calls: Calls, twin: Any) -> list[tuple[Any, ...]]:
    """Seconds until it is looked at again, or no row."""
    return calls.run(
        "select round(extract(epoch from check_at - clock_timestamp()))::int from pgbroker.aliases where task_id = %s",
        twin.id,
    )


def test_it_is_kept_as_long_as_there_is_something_to_lead_to(
    plain: Calls, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = 86400

    def round_of_upkeep() -> int:
        plain.run("update pgbroker.aliases set check_at = clock_timestamp() where task_id = %s", twin.id)
        return Upkeep(Options.from_url(url)).run_once().results

    live, twin = plain.call(), plain.call()
    Upkeep(Options.from_url(url)).run_once()
    assert check_at(plain, twin)[0][0] == pytest.approx(day, abs=5)
    for step in ("waits", "runs", "dead", "kept for an hour", "kept for ever", "an end that nobody delivered"):
        if step == "runs":
            plain.run("select from pgbroker.claim('w', array[%s], 1, 60)", plain.key)
        elif step == "dead":
            plain.run(
                "select pgbroker.bury(array[job_id], array[claim], array['no'])"
                " from pgbroker.jobs_live where queue = %s",
                plain.key,
            )
        elif step == "kept for an hour":
            plain.run("delete from pgbroker.jobs_dead where task_id = %s", live.id)
            plain.app.backend.store.store(live.id, states.FAILURE, b"{}", keep_seconds=3600)
        elif step == "kept for ever":
            plain.app.backend.store.store(live.id, states.FAILURE, b"{}", keep_seconds=None)
        elif step == "an end that nobody delivered":
            live.forget()
            plain.run(
                "insert into pgbroker.outcome_outbox (job_id, task_id, task_name, queue, outcome, detail, headers,"
                " body) values (0, %s, 'a.plain', %s, 'LOST', 'lost', '{}', '')",
                live.id,
                plain.key,
            )
        assert round_of_upkeep() == 0, step
        expected = 3600 if step == "kept for an hour" else day
        assert check_at(plain, twin)[0][0] == pytest.approx(expected, abs=5), step
    plain.run("delete from pgbroker.outcome_outbox where task_id = %s", live.id)
    assert round_of_upkeep() == 1
    assert check_at(plain, twin) == []


def test_cleanup_deletes_them_in_batches(plain: Calls, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_store, "EXPIRY_BATCH", 4)
    live = plain.call()
    twins = [plain.call() for _ in range(10)]
    run("update pgbroker.aliases set check_at = clock_timestamp() where leads_to = %s", live.id)
    plain.app.backend.cleanup()
    assert len(plain.aliases()) == 10, "it is live"
    run("update pgbroker.aliases set check_at = clock_timestamp() where leads_to = %s", live.id)
    run("delete from pgbroker.jobs_live where task_id = %s", live.id)
    plain.app.backend.cleanup()
    assert run("select 1 from pgbroker.aliases where leads_to = %s", live.id) == []
    assert len(twins) == 10


# -- transactions ---------------------------------------------------------------------------------------


@pytest.fixture
def transaction(module_database: Any) -> Iterator[Any]:
    """A connection of the application's own, not in autocommit."""
    with closing(psycopg2.connect(**module_database.dsn)) as connection:
        yield connection


def join(transaction: Any, calls: Calls, task_id: str) -> Any:
    """Publish inside a caller's transaction."""
    message = Message(calls.key, task_id, "a.plain", dedupe_key=calls.key, headers='{"task": "a.plain"}', body=b"[]")
    cursor = transaction.cursor()
    cursor.execute(*store_for("pgbroker").publish(message, is_joined=True, with_alias=True))
    return cursor.fetchone()


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_race_with_a_transaction_leaves_one_job(
    plain: Calls, transaction: Any, ending: str, wait_until: WaitUntil
) -> None:
    plain.call(queue=f"{plain.key}-other")
    first = f"first-{plain.key}"
    join(transaction, plain, first)
    second: list[Any] = []
    thread = threading.Thread(target=lambda: second.append(plain.call()))
    thread.start()
    blocked = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    wait_until(lambda: plain.run(blocked))
    getattr(transaction, ending)()
    thread.join(10)
    if ending == "commit":
        assert plain.jobs() == [first]
        assert plain.aliases() == [(second[0].id, first)]
    else:
        assert plain.jobs() == [second[0].id]
        assert plain.run("select 1 from pgbroker.aliases where task_id = any(%s)", [first, second[0].id]) == []
    plain.app.backend.store_result(plain.jobs()[0], "done", states.SUCCESS)
    assert second[0].get(timeout=5) == "done"


def test_an_alias_goes_with_its_transaction_and_nobody_waits_for_it(plain: Calls, transaction: Any) -> None:
    live = plain.call()
    chosen = f"chosen-{plain.key}"
    assert join(transaction, plain, chosen)[2] == live.id
    began = time.monotonic()
    plain.call(task_id=chosen)  # the same id, and the same alias, from elsewhere
    plain.app.AsyncResult(chosen).forget()
    plain.call(task_id=chosen)
    plain.finish(live)
    assert plain.app.AsyncResult(chosen).get(timeout=5) == "done"
    assert time.monotonic() - began < 3
    transaction.rollback()
    assert plain.aliases() == [(chosen, live.id)]
    only_there = f"only-there-{plain.key}"
    join(transaction, plain, only_there)
    transaction.rollback()
    assert plain.app.AsyncResult(only_there).state == states.PENDING
    assert join(transaction, plain, only_there)[2] == live.id
    transaction.commit()
    assert plain.app.AsyncResult(only_there).get(timeout=5) == "done"
