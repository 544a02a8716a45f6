"""``start_job()`` and ``retract_start()``: who may run a task that must run at most once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pgbroker import Job, JobQueue
from pgbroker.options import Options
from pgbroker.postgres.pool import close_all, pool_for
from pgbroker.queue.store import store_for


class Desk:
    """One job queue, and what the two functions say of its jobs."""

    def __init__(self, url: str) -> None:
        self.jobs = JobQueue(url)
        self.pool = pool_for(Options.from_url(url))
        self.store = store_for("pgbroker")

    def claimed(self, worker: str = "w") -> Job:
        self.jobs.enqueue("task", {})
        job = self.jobs.claim(worker)
        assert isinstance(job, Job)
        return job

    def start(self, job: Job, *, is_repeated: bool = False) -> bool:
        return bool(self.pool.value(*self.store.start_job(job.job_id, job.claim or 0, is_repeated=is_repeated)))

    def retract(self, job: Job) -> int:
        return int(self.pool.value(*self.store.retract_start(job.job_id, job.claim or 0)))

    def row(self, job: Job) -> dict[str, Any]:
        columns = ("status", "ack_mode", "is_started", "attempts", "is_at_its_place")
        (row,) = self.pool.query(
            "select status::text, ack_mode::text, started_at is not null, attempts, run_after = enqueued_at "
            "from pgbroker.jobs where job_id = %s",
            [job.job_id],
        )
        return dict(zip(columns, row, strict=True))

    def let_lease_run_out(self, job: Job) -> None:
        self.pool.query("update pgbroker.jobs_live set lease_until = now() where job_id = %s", [job.job_id])


@pytest.fixture
def desk(database: Any) -> Iterator[Desk]:
    desk = Desk(database.url)
    yield desk
    desk.jobs.close()
    close_all()


STARTED = {"status": "RUNNING", "ack_mode": "EARLY", "is_started": True, "attempts": 1, "is_at_its_place": True}
WAITING = {"status": "PENDING", "ack_mode": None, "is_started": False, "attempts": 0, "is_at_its_place": True}


def test_a_start_is_recorded_once(desk: Desk) -> None:
    job = desk.claimed()
    assert desk.start(job)
    assert desk.row(job) == STARTED
    assert not desk.start(job)
    assert desk.row(job) == STARTED


def test_a_start_that_was_not_answered_is_the_callers_own(desk: Desk) -> None:
    job = desk.claimed()
    assert desk.start(job, is_repeated=True)
    assert desk.start(job, is_repeated=True)
    assert desk.row(job) == STARTED


def test_of_many_who_begin_the_same_claim_one_may(desk: Desk) -> None:
    job = desk.claimed()
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lambda _: desk.start(job), range(8))) == 1


@pytest.mark.parametrize("is_repeated", [False, True])
def test_nothing_starts_under_a_claim_that_was_lost(desk: Desk, is_repeated: bool) -> None:
    job = desk.claimed()
    desk.let_lease_run_out(job)
    assert desk.jobs.reap() == [job.job_id]
    assert not desk.start(job, is_repeated=is_repeated)
    again = desk.jobs.claim("other")
    assert isinstance(again, Job)
    assert not desk.start(job, is_repeated=is_repeated)
    assert desk.start(again)


def test_nothing_starts_under_a_lease_that_has_run_out(desk: Desk) -> None:
    """The reaper would bury it while it runs."""
    job = desk.claimed()
    desk.let_lease_run_out(job)
    assert not desk.start(job)
    assert desk.row(job)["is_started"] is False


def test_nothing_starts_that_has_ended(desk: Desk) -> None:
    job = desk.claimed()
    assert desk.jobs.complete(job.job_id, "w")
    assert not desk.start(job, is_repeated=True)


@pytest.mark.parametrize("is_started", [False, True])
def test_what_has_not_begun_goes_back_to_its_place(desk: Desk, is_started: bool) -> None:
    job = desk.claimed()
    assert not is_started or desk.start(job)
    assert desk.retract(job) == 1
    assert desk.row(job) == WAITING
    assert not desk.start(job, is_repeated=True)


def test_what_somebody_else_has_is_not_given_back(desk: Desk) -> None:
    job = desk.claimed()
    assert desk.retract(job) == 1
    again = desk.jobs.claim("other")
    assert isinstance(again, Job)
    assert desk.start(again)
    assert desk.retract(job) == 0
    assert desk.row(again) == STARTED
