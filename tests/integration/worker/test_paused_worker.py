"""A worker that is frozen for longer than its lease has lost its jobs: what it says when it wakes changes nothing."""

from __future__ import annotations

import os
import signal
import time

import pytest
from ends_site import LEASE, Ends
from worker_site import Worker, wait_until


def freeze(worker: Worker) -> None:
    """The whole session, pool processes included."""
    os.killpg(worker.pid, signal.SIGSTOP)


def thaw(worker: Worker) -> None:
    os.killpg(worker.pid, signal.SIGCONT)


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_changes_nothing_when_it_wakes(pool: str, own: Ends) -> None:
    late = own.tasks["ends.late"].apply_async((1.5,), dedupe_key="late")
    first = own.worker(pool, 1, options=LEASE)
    wait_until(lambda: own.site.job(late.id).get("started_at"), what=own.site.describe)
    freeze(first)
    own.worker("solo", 1, options=LEASE)
    own.site.wait_for(late.id, "DONE", 15)
    assert late.get(timeout=5) == "slept"
    done = own.site.job(late.id)
    assert (done["attempts"], done["worker"].split(":")[1] != str(first.pid)) == (2, True)
    # the key is free, and somebody else holds it by now
    again = own.tasks["ends.late"].apply_async((8,), dedupe_key="late")
    wait_until(lambda: own.site.job(again.id).get("started_at"), what=own.site.describe)
    thaw(first)
    wait_until(lambda: own.site.record.count("end", task_id=late.id) == 2, what=own.site.describe)
    since = time.monotonic()
    wait_until(lambda: time.monotonic() > since + 1, 2)
    assert own.site.job(late.id) == done
    assert own.keys() == ["late"]
    own.site.wait_for(again.id, "DONE", 15)
    assert own.site.record.runs()[again.id] == 1


def test_does_not_settle_the_same_job_that_it_has_claimed_again(own: Ends) -> None:
    """Its first run ends after its second has begun: only the second claim counts."""
    late = own.tasks["ends.late"].delay(3)
    worker = own.worker("threads", 2, options=LEASE)
    wait_until(lambda: own.site.job(late.id).get("started_at"), what=own.site.describe)
    claim = "select claim, attempts from pgbroker.jobs_live where task_id = %s and status = 'RUNNING'"
    ((first_claim, _),) = own.site.rows(claim, late.id)
    freeze(worker)
    wait_until(lambda: own.site.rows("select pgbroker.reap()") != [], 10)
    assert own.site.job(late.id)["status"] == "PENDING"
    thaw(worker)
    wait_until(lambda: own.site.record.runs()[late.id] == 2, what=own.site.describe)
    wait_until(lambda: own.site.record.count("end", task_id=late.id) == 1, what=own.site.describe)
    ((second_claim, attempts),) = own.site.rows(claim, late.id)
    assert (second_claim > first_claim, attempts) == (True, 2)
    own.site.wait_for(late.id, "DONE", 10)
    assert own.site.record.count("end", task_id=late.id) == 2
    assert own.site.rows("select kind from pgbroker.job_events") == [("lost",)]


def test_an_early_acknowledged_one_is_dead_and_stays_so(own: Ends) -> None:
    early = own.tasks["ends.early"].delay(1.5)
    worker = own.worker("prefork", 1, options=LEASE)
    wait_until(lambda: own.site.job(early.id).get("started_at"), what=own.site.describe)
    freeze(worker)
    wait_until(lambda: own.site.rows("select pgbroker.reap()") != [], 10)
    dead = own.site.job(early.id)
    assert dead["status"] == "DEAD"
    assert dead["last_error"].startswith("worker lost after start: ")
    own.worker("solo", 1, queues="another", options=LEASE)
    own.wait_state(own.result(early.id), "FAILURE", 10)
    wait_until(lambda: own.outbox() == [], what=own.site.describe)
    thaw(worker)
    wait_until(lambda: own.site.record.count("end", task_id=early.id) == 1, what=own.site.describe)
    # the task has succeeded after all, too late: callers, chords and errbacks were told otherwise
    since = time.monotonic()
    wait_until(lambda: time.monotonic() > since + 1, 2)
    assert own.result(early.id).state == "FAILURE"
    assert own.site.job(early.id) == dead
    assert own.site.record.runs()[early.id] == 1
