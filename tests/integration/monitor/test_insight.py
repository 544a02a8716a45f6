"""The read side on a real server: queues, jobs, dead letters, workers, and the story of one job."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from pgbroker import errors
from pgbroker.monitor import insight
from pgbroker.monitor.story import JobStory, job_story
from pgbroker.options import Options
from pgbroker.postgres.pool import pool_for
from pgbroker.queue.routing import QueueTraits, routing_for

if TYPE_CHECKING:
    from .conftest import Desk


def story(desk: Desk, job_id: int | str) -> JobStory:
    return job_story(desk.options, str(job_id))


# -- lists -----------------------------------------------------------------------------------------------


def test_queues_count_what_lies_in_them(desk: Desk, name: str) -> None:
    desk.bury(name)
    desk.put(name)
    desk.take(name)
    first = desk.put(name)
    desk.put(name)
    desk.put(name, run_after=600)
    desk.put(name, expires=-1)
    desk.run("update pgbroker.jobs_live set run_after = run_after - interval '90 s',"
             " enqueued_at = enqueued_at - interval '90 s' where job_id = %s", first)  # fmt: skip
    desk.attend(name)
    desk.attend(name, "gone", seconds=-1)
    found = next(queue for queue in insight.queues(desk.options) if queue.queue == name)
    assert (found.kind, found.ready, found.scheduled, found.running, found.dead) == ("job", 2, 1, 1, 1)
    assert 90 <= found.oldest_ready_seconds < 150
    assert (found.consumers, found.paused_at) == (1, None)


def test_transient_queues_are_listed_on_demand(desk: Desk, name: str) -> None:
    pool, routing = pool_for(desk.options), routing_for("pgbroker")
    pool.query(*routing.declare_queue(name, QueueTraits(is_transient=True, expires_seconds=60)))
    desk.run("insert into pgbroker.mailbox (queue, body) values (%s, '')", name)
    assert name not in {queue.queue for queue in insight.queues(desk.options)}
    found = next(queue for queue in insight.queues(desk.options, with_transient=True) if queue.queue == name)
    assert (found.kind, found.ready, found.consumers) == ("transient", 1, 0)


def test_jobs_are_the_newest_first_and_of_all_states(desk: Desk, name: str) -> None:
    done, cancelled, dead = desk.put(name), desk.put(name, run_after=60), desk.put(name, "shop.bill", max_attempts=1)
    assert [desk.take(name).job_id, desk.take(name).job_id] == [done, dead]
    desk.jobs.complete(done, desk.worker)
    desk.jobs.cancel(cancelled)
    desk.jobs.fail(dead, desk.worker, "no")
    running = desk.put(name, "shop_bill")
    desk.take(name)
    waiting = desk.put(name)

    rows = insight.jobs(desk.options, queue=name)
    assert [(row["job_id"], row["status"]) for row in rows] == [
        (waiting, "PENDING"),
        (running, "RUNNING"),
        (dead, "DEAD"),
        (cancelled, "CANCELLED"),
        (done, "DONE"),
    ]
    assert rows[-1]["finished_at"].tzinfo is dt.UTC
    assert [row["job_id"] for row in insight.jobs(desk.options, queue=name, limit=2)] == [waiting, running]
    for status, job_id in (("RUNNING", running), ("DONE", done), ("DEAD", dead)):
        assert [row["job_id"] for row in insight.jobs(desk.options, queue=name, status=status)] == [job_id]
    for task, ids in (("shop.bill", [dead]), ("shop?bill", []), ("shop_b*", [running]), ("*bill", [running, dead])):
        assert [row["job_id"] for row in insight.jobs(desk.options, queue=name, task=task)] == ids, task


def test_history_shows_what_history_seconds_allow(fresh_desk: Desk, name: str) -> None:
    desk = fresh_desk
    job_id = desk.put(name)
    desk.take(name)
    desk.jobs.complete(job_id, desk.worker, {"parcel": 1})
    assert story(desk, job_id).job["result"] == '{"parcel": 1}'
    desk.run("update pgbroker.job_history set finished_at = finished_at - interval '2 days'")
    assert insight.jobs(desk.options) == []
    with pytest.raises(errors.PgBrokerError, match="history is over"):
        story(desk, job_id)


def test_dead_letters_are_those_buried_last_first(desk: Desk, name: str) -> None:
    first, second = desk.bury(name), desk.bury(name, task="shop.bill")
    desk.run("update pgbroker.jobs_dead set buried_at = clock_timestamp() + interval '1 s' where job_id = %s", first)
    assert [row["job_id"] for row in insight.dead(desk.options, queue=name)] == [first, second]
    assert [row["job_id"] for row in insight.dead(desk.options, queue=name, limit=1)] == [first]
    assert [row["job_id"] for row in insight.dead(desk.options, queue=name, task="*.bill")] == [second]
    assert insight.count_dead(desk.options, queue=name) == 2


def test_workers_are_who_consumes_and_who_holds_jobs(fresh_desk: Desk) -> None:
    desk = fresh_desk
    assert insight.workers(desk.options) == []
    desk.attend("a")
    for _ in range(2):
        desk.put("a")
    desk.take("a", lease_seconds=500)
    desk.take("a", lease_seconds=100)
    desk.run("update pgbroker.jobs_live set started_at = clock_timestamp(), ack_mode = 'LATE' where job_id = 1")
    desk.put("b")
    desk.take("b", worker="script", lease_seconds=0.001)
    own, script = sorted(insight.workers(desk.options), key=lambda worker: worker.worker != desk.worker)
    assert (own.worker, own.host, own.pid, own.queues) == (desk.worker, "web-1", 4711, ("a",))
    assert (own.running, own.started) == (2, 1)
    assert own.lease_seconds is not None
    assert 60 < own.lease_seconds <= 100
    assert (script.worker, script.host, script.pid, script.queues, script.running) == ("script", None, None, (), 1)
    assert script.lease_seconds is not None
    assert script.lease_seconds < 0


# -- the story of a job ----------------------------------------------------------------------------------


def test_a_job_waits_for_its_eta_its_queue_and_a_consumer(desk: Desk, name: str) -> None:
    job_id = desk.put(name, run_after=dt.timedelta(minutes=12, seconds=30))
    pool_for(desk.options).query("select pgbroker.pause_queue(%s)", [name])
    paused, waits, nobody = story(desk, job_id).why
    assert paused.startswith(f"queue '{name}' has been paused for ")
    assert waits.startswith("waits for its ETA in 12 min, at ")
    assert nobody.startswith(f"no consumer on queue '{name}'")
    pool_for(desk.options).query("select pgbroker.pause_queue(%s, false)", [name])
    desk.attend(name)
    assert [line[:17] for line in story(desk, job_id).why] == ["waits for its ETA"]


def test_a_job_knows_how_many_go_before_it(desk: Desk, name: str) -> None:
    desk.attend(name)
    old, low, high = desk.put(name), desk.put(name), desk.put(name, priority=9)
    desk.put(name, priority=9, expires=-1)
    desk.put(name, priority=9, run_after=600)
    assert story(desk, high).why[0].startswith("ready and first in line: claimed as soon as a worker has room (1 cons")
    assert story(desk, old).why[0].startswith("ready, behind 1 other, the oldest ready for ")
    assert story(desk, low).why[0].startswith("ready, behind 2 others, the oldest ready for ")
    low_first = Options.from_url(desk.database.url, {"priority_order": "low_first"})
    assert job_story(low_first, str(high)).why[0].startswith("ready, behind 2 others")
    desk.take(name)
    assert (
        story(desk, old)
        .why[0]
        .endswith("first in line: claimed as soon as a worker has room (1 consumer, 1 held by workers)")
    )


def test_a_sleeping_program_counts_as_a_consumer(desk: Desk, name: str) -> None:
    job_id = desk.put(name)
    assert "no consumer" in story(desk, job_id).why[0]
    desk.run("insert into pgbroker.sleepers (queue, channel, until) values (%s, 'c', now() + interval '1 min')", name)
    assert story(desk, job_id).why[0].startswith("ready and first in line: claimed as soon as")


def test_an_expired_job_says_so(desk: Desk, name: str) -> None:
    (why,) = story(desk, desk.put(name, expires=-120)).why
    assert why.startswith("expired 2 min ago and is never claimed")


def test_a_failed_attempt_waits_for_the_next(desk: Desk, name: str) -> None:
    desk.attend(name)
    job_id = desk.put(name)
    desk.take(name)
    desk.jobs.fail(job_id, desk.worker, "ValueError: no such order", backoff_seconds=100)
    told = story(desk, job_id)
    assert told.why[0].startswith("waits for its next attempt (lost or failed 1 of 5 times), due in 1.")
    assert [(event["kind"], event["attempts"], event["detail"]) for event in told.events] == [
        ("failed", 1, "ValueError: no such order")
    ]


def test_a_running_job_names_its_holder_and_lease(desk: Desk, name: str) -> None:
    job_id = desk.put(name)
    desk.take(name, lease_seconds=60)
    held, since, _ = story(desk, job_id).why
    assert held.startswith(f"held by worker {desk.worker}, lease until ")
    assert since.startswith("claimed ")
    desk.run("update pgbroker.jobs_live set ack_mode = 'EARLY', started_at = clock_timestamp() - interval '3 min',"
             " lease_until = clock_timestamp() - interval '5 min' where job_id = %s", job_id)  # fmt: skip
    lost, since, early = story(desk, job_id).why
    assert "whose lease ran out 5 min ago: lost" in lost
    assert since == "started 3 min ago, attempt 1"
    assert "not run again" in early


def test_a_dead_letter_says_how_to_requeue_it_unless_its_key_is_taken(desk: Desk, name: str) -> None:
    job_id = desk.bury(name, dedupe_key="order 7")
    dead, how = story(desk, job_id).why
    assert dead.endswith(": ValueError: no such order")
    assert how == f"requeue with: celery -A APP pgbroker requeue {job_id}"
    holder = desk.put(name, dedupe_key="order 7")
    assert f"held by job {holder}" in story(desk, job_id).why[1]


def test_a_task_id_tells_of_all_its_jobs(desk: Desk, name: str) -> None:
    first = desk.put(name)
    task_id = desk.take(name).task_id
    assert task_id is not None
    desk.run("select pgbroker.settle('{}', '{}', '{}', array[job_id], array[claim], array['RETRY'])"
             " from pgbroker.jobs_live where job_id = %s", first)  # fmt: skip
    second = desk.put(name)
    desk.run("update pgbroker.jobs_live set task_id = %s where job_id = %s", task_id, second)
    told = story(desk, task_id)
    assert told.job["job_id"] == second
    assert [(run["job_id"], run["result_state"]) for run in told.other_runs] == [(first, "RETRY")]
    assert "a newer job of the same task goes on" in story(desk, first).why[0]
    assert told.headers["kwargsrepr"] == "{'order': 7}"


def test_the_state_of_a_stored_result_is_told_without_its_value(desk: Desk, name: str) -> None:
    job_id = desk.put(name)
    task_id = desk.take(name).task_id
    desk.run("call pgbroker.store_result(%s, 'STARTED', 'secret', 60)", task_id)
    told = story(desk, job_id)
    assert told.result is not None
    assert (told.result["status"], sorted(told.result)) == ("STARTED", ["expires_at", "status", "stored_at"])


@pytest.mark.parametrize("given", ["0", "-1", "99999999999999999999999", "'; --", "²"])
def test_an_id_that_is_none_is_unknown(desk: Desk, given: str) -> None:
    with pytest.raises(errors.PgBrokerError, match="no job and no task has the id"):
        story(desk, given)
