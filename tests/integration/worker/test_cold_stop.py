"""A cold stop: what has begun is broken off, and each job says what that meant for it."""

from __future__ import annotations

import signal

import pytest
from ends_site import Ends
from worker_site import wait_until

#: Pools whose tasks can be ended; the others wait for theirs, on every broker.
ENDING = ("prefork", "gevent")
WAITING = ("threads", "solo")

#: Long enough that nothing here can come from a lease that ran out.
OPTIONS = {"lease_seconds": 60}


def wait_started(own: Ends, *task_ids: str) -> None:
    started = "select count(*) from pgbroker.jobs_live where started_at is not null and task_id = any (%s)"
    wait_until(
        lambda: own.site.rows(started, list(task_ids)) == [(len(task_ids),)],
        what=lambda: own.site.describe(task_ids[0]),
    )


@pytest.mark.parametrize("name", ["SIGQUIT", "two SIGINT"])
@pytest.mark.parametrize("pool", ENDING)
def test_breaks_off_what_runs(pool: str, name: str, own: Ends) -> None:
    late = own.tasks["ends.late"].delay(60)
    early = own.with_errback("ends.early", 60).apply_async()
    waiting = [own.tasks["ends.late"].delay(0).id, own.tasks["ends.early"].delay(0).id]
    worker = own.site.worker(
        pool,
        2,
        imports=["ends_tasks"],
        options=OPTIONS,
        worker_prefetch_multiplier=4,
        worker_enable_remote_control=False,
    )
    wait_started(own, late.id, early.id)
    # the pool of gevent blocks the consumer with one task in its hands
    wait_until(lambda: own.site.statuses(waiting)["RUNNING"] >= (1 if pool == "gevent" else 2), what=own.site.describe)
    if name == "two SIGINT":
        worker.process.send_signal(signal.SIGINT)
        wait_until(lambda: "Hitting Ctrl+C again" in worker.output(), what=worker.output)
        worker.process.send_signal(signal.SIGINT)
    else:
        worker.process.send_signal(signal.SIGQUIT)
    worker.wait(15)
    # Celery's handler waits for gevent's pool, which gevent does not allow in a signal handler: said on every broker
    worker.may_fail = pool == "gevent"
    dead = own.site.job(early.id)
    assert (dead["status"], dead["attempts"]) == ("DEAD", 1)
    assert dead["last_error"].startswith("worker stopped after start: ")
    given_back = own.site.job(late.id)
    assert (given_back["status"], given_back["attempts"]) == ("PENDING", 1)
    assert [own.site.job(i)["status"] for i in waiting] == ["PENDING", "PENDING"]
    assert [own.site.job(i)["attempts"] for i in waiting] == [0, 0]
    assert own.site.rows("select losses from pgbroker.jobs") == [(0,)] * 4
    assert own.site.rows("select kind, task_id from pgbroker.job_events order by kind") == [
        ("buried", early.id),
        ("stopped", late.id),
    ]
    # Celery had said RETRY, which nobody would have ended
    own.wait_state(early, "FAILURE", 5)
    assert late.state == "PENDING"
    own.worker("threads", 4)
    assert "worker stopped after start" in own.wait_error(early.id)
    assert own.site.record.runs()[early.id] == 1


@pytest.mark.parametrize("pool", WAITING)
def test_waits_where_tasks_cannot_be_ended(pool: str, own: Ends) -> None:
    """Threads cannot be killed; Celery's attempt to do so must not end up in the task that solo runs."""
    late = own.tasks["ends.late"].delay(2)
    worker = own.worker(pool, 2 if pool == "threads" else 1, options=OPTIONS, worker_prefetch_multiplier=4)
    wait_started_body(own, late.id)
    worker.process.send_signal(signal.SIGQUIT)
    worker.wait(15)
    assert own.site.job(late.id)["status"] == "DONE"
    assert late.get(timeout=1) == "slept"
    assert "it runs on" in worker.output()


def wait_started_body(own: Ends, task_id: str) -> None:
    wait_until(lambda: own.site.record.runs()[task_id] == 1, what=lambda: own.site.describe(task_id))


@pytest.mark.parametrize("ack", ["late", "early"])
def test_a_soft_stop_lets_the_short_ones_end(ack: str, own: Ends) -> None:
    """Celery reads nothing while it waits, so it takes those that have ended in time for running."""
    short, long = own.tasks[f"ends.{ack}"].delay(1.5), own.tasks[f"ends.{ack}"].delay(60)
    worker = own.worker("prefork", 2, options=OPTIONS, worker_soft_shutdown_timeout=3)
    wait_started(own, short.id, long.id)
    worker.process.send_signal(signal.SIGQUIT)
    worker.wait(15)
    assert own.site.record.count("end", task_id=short.id) == 1
    assert own.site.job(short.id)["status"] == "DONE"
    assert short.get(timeout=1) == "slept"
    assert own.site.job(long.id)["status"] == ("PENDING" if ack == "late" else "DEAD")


def test_a_task_that_began_in_the_last_moment_counts_as_begun(own: Ends) -> None:
    """It was with a pool process when the signal came, and Celery hears of its start no more."""
    ids: list[str] = []
    worker = own.worker("prefork", 1, options=OPTIONS, worker_soft_shutdown_timeout=2)
    ids.append(own.tasks["ends.early"].delay(30).id)
    wait_started_body(own, ids[0])
    worker.process.send_signal(signal.SIGQUIT)
    worker.wait(15)
    assert own.site.job(ids[0])["status"] == "DEAD"


def test_sigterm_remapped_to_sigquit(own: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAP_SIGTERM", "SIGQUIT")
    late = own.tasks["ends.late"].delay(60)
    worker = own.worker("prefork", 1, options=OPTIONS)
    wait_started(own, late.id)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait(15)
    assert own.site.job(late.id)["status"] == "PENDING"


def test_deploys_are_no_losses(own: Ends) -> None:
    """More cold stops than max_attempts allows losses."""
    late = own.tasks["ends.late"].delay(60)
    for round_ in range(1, 4):
        worker = own.worker("prefork", 1, options={**OPTIONS, "max_attempts": 2})
        wait_started(own, late.id)
        worker.process.send_signal(signal.SIGQUIT)
        worker.wait(15)
        job = own.site.job(late.id)
        assert (job["status"], job["attempts"]) == ("PENDING", round_)
        assert own.site.rows("select kind from pgbroker.job_events") == [("stopped",)] * round_


def test_a_lost_connection_breaks_off_late_tasks_where_that_is_wanted(own: Ends) -> None:
    late, early = own.tasks["ends.late"].delay(3), own.tasks["ends.early"].delay(3)
    own.worker("prefork", 2, options=OPTIONS, worker_cancel_long_running_tasks_on_connection_loss=True)
    wait_started(own, late.id, early.id)
    own.site.cut_all()
    own.site.wait_for(late.id, "DONE", 20)
    own.site.wait_for(early.id, "DONE", 10)
    assert own.site.record.runs() == {late.id: 2, early.id: 1}
    assert own.site.record.count("end", task_id=late.id) == 1
    assert own.site.job(late.id)["attempts"] == 2
    assert own.site.rows("select kind, task_id from pgbroker.job_events") == [("stopped", late.id)]
