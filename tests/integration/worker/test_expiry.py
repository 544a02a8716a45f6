"""What has expired ends as CANCELLED wherever it is, and Celery learns of it."""

from __future__ import annotations

import time

import pytest
from ends_site import Ends
from worker_site import wait_until


def cancelled(ends: Ends, task_id: str) -> bool:
    job = ends.site.job(task_id)
    return (job.get("status"), job.get("result_state")) == ("CANCELLED", "REVOKED")


def test_what_waits_ends_soon_after_it_expired(ends: Ends) -> None:
    """The worker is idle and serves another queue."""
    ends.worker("threads", 1, queues="other")
    single = ends.with_errback("ends.early", 0).apply_async(expires=1, dedupe_key="k")
    chord = ends.chord_of(ends.tasks["ends.early"].si(0).set(expires=1, countdown=600)).apply_async(queue="other")
    began = time.monotonic()
    wait_until(lambda: cancelled(ends, single.id), 8, ends.site.describe)
    assert time.monotonic() - began > 0.8
    ends.wait_state(single, "REVOKED", 2)
    assert ends.wait_error(single.id) == "TaskRevokedError: expired before it was claimed"
    ends.wait_state(chord.parent.results[0], "REVOKED", 6)
    assert ends.site.record.events("signal revoked", task_id=single.id)[0]["expired"] is True
    assert ends.keys() == []
    assert ends.site.record.count("start") == 0


def test_a_busy_worker_ends_it_too(own: Ends) -> None:
    own.worker("threads", 1, worker_prefetch_multiplier=1)
    own.tasks["ends.early"].delay(8)
    wait_until(lambda: own.site.record.count("start") == 1, what=own.site.describe)
    held = own.tasks["ends.early"].delay(0)
    wait_until(lambda: own.site.statuses() == {"RUNNING": 2} or own.site.statuses() == {"RUNNING": 1, "PENDING": 1}, 3)
    waiting = own.tasks["ends.early"].apply_async((0,), expires=1)
    own.wait_state(waiting, "REVOKED", 7)
    assert own.site.record.runs()[held.id] == 0


def test_what_a_worker_holds_expires(own: Ends) -> None:
    """On prefork: Celery's other pools have taken the task by then, and run it on every broker."""
    own.worker("prefork", 1)
    running = own.tasks["ends.early"].delay(2)
    wait_until(lambda: own.site.record.count("start") == 1, what=own.site.describe)
    held = own.tasks["ends.early"].apply_async((0,), expires=1, dedupe_key="k")
    wait_until(lambda: own.site.job(held.id)["status"] == "RUNNING", 1, own.site.describe)
    wait_until(lambda: cancelled(own, held.id), 10, own.site.describe)
    own.wait_state(held, "REVOKED")
    own.site.wait_for(running.id, "DONE")
    assert own.keys() == []
    assert own.site.record.count("start") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_worker_whose_clock_is_ahead_does_not_call_it_done(pool: str, own: Ends) -> None:
    """It drops the message before anybody is told that a task was received."""
    results = [own.tasks["ends.early"].apply_async((0,), expires=0.5) for _ in range(2)]
    own.site.rows("update pgbroker.jobs_live set expires_at = null")
    wait_until(
        lambda: own.site.rows("select clock_timestamp() > min(enqueued_at) + '1 s' from pgbroker.jobs_live")[0][0]
    )
    own.worker(pool, 1)
    for result in results:
        wait_until(lambda result=result: cancelled(own, result.id), 5, own.site.describe)
        own.wait_state(result, "REVOKED")
    assert own.site.record.count("start") == 0


def test_a_plain_message_just_vanishes(own: Ends) -> None:
    with own.app.connection_for_write() as connection, connection.SimpleQueue("plain") as queue:
        queue.put({"hello": 1}, expiration=0.3, headers={"mine": 1})
    own.worker()
    wait_until(lambda: own.site.rows("select 1 from pgbroker.job_history"), 8, own.site.describe)
    assert own.site.rows("select status, result_state from pgbroker.job_history") == [("CANCELLED", "REVOKED")]
    assert own.site.rows("select 1 from pgbroker.jobs") == []
    assert own.outbox() == []
