"""Claims as properties: one winner for each job, every job exactly once, strict order."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgbroker import Job, JobQueue

if TYPE_CHECKING:
    from conftest import Database

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def jobs(module_database: Database) -> Iterator[JobQueue]:
    with JobQueue(module_database.url) as queue:
        yield queue


def new_name() -> str:
    return f"q-{uuid.uuid4().hex}"


def put(jobs: JobQueue, queue: str, priority: int = 0, age: int = 0) -> int:
    run_after = LONG_AGO - dt.timedelta(seconds=age)
    job_id = jobs.enqueue("task", {}, queue=queue, priority=priority, run_after=run_after)
    assert job_id is not None
    return job_id


def all_at_once(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(n)`` in that many threads, which all begin at the same moment; raise what one of them raised."""
    start, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            start.wait(30)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@settings(max_examples=40, deadline=None, database=None)
@given(limits=st.lists(st.integers(1, 3), min_size=5, max_size=5), priority=st.integers(0, 9))
def test_one_of_five_claims_wins(jobs: JobQueue, limits: list[int], priority: int) -> None:
    queue = new_name()
    job_id = put(jobs, queue, priority)
    won: list[Job] = []

    def claim(number: int) -> None:
        found = jobs.claim(f"w{number}", queues=(queue,), limit=limits[number])
        won.extend(found if isinstance(found, list) else [found] if found else [])

    all_at_once(5, claim)
    assert [job.job_id for job in won] == [job_id]
    held = jobs.get(job_id)
    assert held is not None
    assert (held.worker, held.claim, held.attempts) == (won[0].worker, won[0].claim, 1)


@settings(max_examples=8, deadline=None, database=None)
@given(
    priorities=st.lists(st.integers(0, 9), min_size=30, max_size=90),
    limits=st.lists(st.integers(1, 7), min_size=8, max_size=8),
    is_settled=st.booleans(),
)
def test_eight_claimers_get_each_job_exactly_once(
    jobs: JobQueue, priorities: list[int], limits: list[int], is_settled: bool
) -> None:
    queue = new_name()
    ids = [put(jobs, queue, priority) for priority in priorities]
    claimed: list[Job] = []

    def work(number: int) -> None:
        worker, misses = f"w{number}", 0
        while misses < 2:
            found = jobs.claim(worker, queues=(queue,), limit=limits[number] + 1)
            misses = 0 if found else misses + 1
            claimed.extend(found)
            for job in found if is_settled else ():
                assert jobs.complete(job.job_id, worker, claim=job.claim)

    all_at_once(8, work)
    # a claimer may have gone home while the last jobs were locked by a slower one, but none is left over
    assert jobs.claim("late", queues=(queue,)) is None
    assert Counter(job.job_id for job in claimed) == Counter(ids)
    assert len({job.claim for job in claimed}) == len(ids)


@settings(max_examples=40, deadline=None, database=None)
@given(
    made=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()), min_size=1, max_size=30),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_one_claimer_sees_strict_order(jobs: JobQueue, made: list[tuple[int, int, bool]], limits: list[int]) -> None:
    queue = new_name()
    expected = []
    for priority, age, is_late in made:
        if is_late:
            jobs.enqueue("task", {}, queue=queue, priority=9, run_after=3600)
        expected.append((-priority, -age, put(jobs, queue, priority, age)))
    expected.sort()
    seen: list[int] = []
    while True:
        limit = limits[len(seen) % len(limits)]
        found = jobs.claim("w", queues=(queue,), limit=limit)
        batch = found if isinstance(found, list) else [found] if found else []
        if not batch:
            break
        seen += [job.job_id for job in batch]
    assert seen == [job_id for _, _, job_id in expected]
