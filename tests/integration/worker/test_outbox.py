"""Ends that the broker made reach results, chords and errbacks, whichever result backend is used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError, WorkerLostError
from ends_site import LEASE, Ends
from worker_site import POOLS, wait_until


def test_tells_of_a_lost_worker(ends: Ends) -> None:
    single = ends.with_errback("ends.early", 60).delay()
    chord = ends.chord_of(ends.tasks["ends.early"].si(60)).delay()
    lost = ends.worker("threads", 2, options=LEASE)
    wait_until(lambda: ends.site.record.count("start") == 2, what=ends.site.describe)
    wait_until(
        lambda: len(ends.site.rows("select 1 from pgbroker.jobs_live where started_at is not null")) == 2,
        what=ends.site.describe,
    )
    lost.kill()
    ends.worker("prefork", 1, options=LEASE)
    ends.wait_state(single, "FAILURE")
    assert isinstance(single.result, WorkerLostError)
    assert "worker lost after start" in str(single.result)
    assert ends.wait_error(single.id).startswith("WorkerLostError: worker lost after start")
    ends.wait_state(chord, "FAILURE")
    assert ends.wait_error(chord.id).startswith("ChordError")
    wait_until(lambda: ends.outbox() == [], what=ends.site.describe)
    assert ends.site.statuses([single.id]) == {"DEAD": 1}
    (signal,) = ends.site.record.events("signal failure", task_id=single.id)
    assert (signal["error"], signal["args"]) == ("WorkerLostError", [60])


def test_tells_of_a_purge(ends: Ends) -> None:
    ends.worker("threads", 1, queues="another")
    queue = {"queue": "celery"}
    single = ends.with_errback("ends.number", 5).apply_async(**queue)
    ignoring = ends.with_errback("ends.number", 6).apply_async(ignore_result=True, **queue)
    chain = (ends.tasks["ends.number"].si(1) | ends.tasks["ends.number"].si(2)).apply_async(**queue)
    assert ends.app.control.purge() == 3
    ends.wait_state(single, "REVOKED", 5)
    ends.wait_state(chain, "REVOKED", 5)
    assert ends.wait_error(single.id) == "TaskRevokedError: queue purged"
    assert ends.wait_error(ignoring.id) == "TaskRevokedError: queue purged"
    wait_until(lambda: ends.outbox() == [], what=ends.site.describe)
    assert ends.app.AsyncResult(ignoring.id).state == "PENDING"
    (signal,) = ends.site.record.events("signal revoked", task_id=single.id)
    assert signal["expired"] is False
    assert ends.site.record.count("number") == 0


@pytest.mark.parametrize("pool", POOLS)
def test_delivers_in_every_pool_and_sends_the_event(pool: str, own: Ends) -> None:
    own.worker(pool, 1, "-E")
    with own.app.connection_for_read() as connection:
        events: list[dict[str, Any]] = []
        receiver = own.app.events.Receiver(connection, handlers={"task-revoked": events.append})
        with receiver.consumer_context(wakeup=False) as (listening, _, _):
            result = own.with_errback("ends.number", 5).apply_async(countdown=600)
            own.app.control.purge()
            own.wait_state(result, "REVOKED", 3)
            own.wait_error(result.id, 3)
            wait_until(lambda: drained(listening, events), 5, own.site.describe)
    (event,) = events
    assert (event["uuid"], event["expired"], event["terminated"]) == (result.id, False, False)


def drained(connection: Any, events: list[dict[str, Any]]) -> bool:
    try:
        connection.drain_events(timeout=0.1)
    except TimeoutError:
        pass
    return bool(events)


def test_a_worker_that_is_busy_leaves_it_to_others(own: Ends) -> None:
    own.worker("solo", 1)
    own.tasks["ends.early"].delay(5)
    wait_until(lambda: own.site.record.count("start") == 1, what=own.site.describe)
    result = own.with_errback("ends.number", 5).apply_async(countdown=600)
    own.app.control.purge()
    own.worker("threads", 1, queues="other", options={"reap_interval": 0.5})
    own.wait_error(result.id, 3)
    assert own.site.record.count("end") == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Celery's Redis backend writes with SETEX
def test_leaves_a_success_alone(ends: Ends) -> None:
    """The worker died between the result and the end of the job, or another run was faster."""
    task = ends.with_errback("ends.number", 5)
    result = task.apply_async(countdown=600)
    ends.app.backend.store_result(result.id, 5, "SUCCESS")
    ends.site.rows("select pgbroker.cancel(job_id, 'REVOKED', 'by mistake') from pgbroker.jobs_live")
    ends.worker()
    wait_until(lambda: ends.outbox() == [], what=ends.site.describe)
    assert result.get(timeout=5) == 5
    assert ends.errors(result.id) == []


def test_takes_over_from_a_deliverer_that_died(own: Ends) -> None:
    result = own.with_errback("ends.number", 5).apply_async(countdown=600)
    own.site.rows("select pgbroker.cancel(job_id, 'PURGED', 'purged') from pgbroker.jobs_live")
    assert len(own.site.rows("select 1 from pgbroker.take_outcomes(10, 3)")) == 1
    own.worker("solo", 1, options={"reap_interval": 0.5})
    assert own.errors(result.id) == []
    assert own.wait_error(result.id, 5) == "TaskRevokedError: purged"
    assert own.site.rows("select status from pgbroker.results where task_id = %s", result.id) == [("REVOKED",)]


def test_tells_of_what_it_cannot_decode_or_does_not_know(own: Ends) -> None:
    app = own.site.make_app(accept_content=["json", "pickle"])
    pickled = app.send_task("ends.number", (1,), serializer="pickle", countdown=600)
    unknown = app.send_task("ends.unknown", (1,), countdown=600, link_error=own.tasks["ends.on_error"].s())
    own.site.rows("select pgbroker.cancel(job_id, 'PURGED', 'purged') from pgbroker.jobs_live")
    worker = own.worker()
    wait_until(lambda: own.outbox() == [], what=own.site.describe)
    assert own.wait_error(unknown.id) == "TaskRevokedError: purged"
    for result in (pickled, unknown):
        assert own.site.rows("select status from pgbroker.results where task_id = %s", result.id) == [("REVOKED",)]
    assert f"cannot decode task ends.number[{pickled.id}]" in worker.output()
    app.close()


def test_counts_as_the_result_until_it_is_delivered(own: Ends) -> None:
    """No worker is up."""
    gone = own.tasks["ends.number"].apply_async((1,), countdown=600)
    lost = own.tasks["ends.number"].delay(2)
    own.site.rows(
        "select pgbroker.cancel(job_id, 'REVOKED', 'not wanted') from pgbroker.jobs_live where run_after > now()"
    )
    own.site.rows("select 1 from pgbroker.claim('w', array['celery'], 1, 0)")
    own.site.rows("update pgbroker.jobs_live set ack_mode = 'EARLY', started_at = now()")
    assert own.site.rows("select new_status from pgbroker.reap()") == [("DEAD",)]
    with pytest.raises(TaskRevokedError, match="not wanted"):
        gone.get(timeout=5)
    with pytest.raises(WorkerLostError, match="worker lost after start"):
        lost.get(timeout=5)
    assert (gone.state, lost.state) == ("REVOKED", "FAILURE")


def test_many_outcomes_do_not_keep_tasks_waiting(own: Ends) -> None:
    own.worker("threads", 2, queues="busy")
    for _ in range(200):
        own.tasks["ends.number"].apply_async((1,), queue="celery")
    own.app.control.purge()
    assert own.tasks["ends.number"].apply_async((7,), queue="busy").get(timeout=2) == 7
    wait_until(lambda: own.outbox() == [], 10, own.site.describe)
    stored = own.site.rows("select status, count(*) from pgbroker.results group by 1 order by 1")
    assert stored == [("REVOKED", 200), ("SUCCESS", 1)]


def test_an_outcome_holds_the_whole_message(own: Ends) -> None:
    result = own.with_errback("ends.number", 5).apply_async(countdown=600, priority=3)
    own.app.control.purge()
    ((headers, properties, body),) = own.site.rows("select headers, properties, body from pgbroker.outcome_outbox")
    assert json.loads(headers)["id"] == result.id
    assert json.loads(properties)["priority"] == 3
    assert json.loads(bytes(body))[2]["errbacks"][0]["task"] == "ends.on_error"
