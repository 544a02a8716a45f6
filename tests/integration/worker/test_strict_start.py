"""``strict_start``: an early-acknowledged task begins only when its start is committed, and only under its claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from celery.result import AsyncResult
from strict_tasks import hold_file, register
from worker_site import POOLS, PREFORK_FIRST, Site, Worker, wait_until

STRICT = {"strict_start": True}


class Strict:
    """A site whose workers have the tasks of :mod:`strict_tasks`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.tasks = register(site.app).tasks

    def wait_not_begun(self, worker: Worker, result: AsyncResult[Any], why: str) -> None:
        """Wait until the worker says that it has not run the task."""
        text = f"[{result.id}] has not begun: {why}"
        wait_until(lambda: text in worker.output(), 30, what=worker.output)

    def worker(self, pool: str, concurrency: int = 1, **conf: Any) -> Worker:
        return self.site.worker(pool, concurrency, **{"options": STRICT, "imports": ["strict_tasks"], **conf})

    def send(self, name: str = "early") -> AsyncResult[Any]:
        result: AsyncResult[Any] = self.tasks[f"strict.{name}"].delay()
        return result

    def rows_seen(self, *results: AsyncResult[Any]) -> list[Any]:
        """What each run saw of its own row."""
        ids = {result.id for result in results}
        return [event["row"] for event in self.site.record.events("start") if event["task_id"] in ids]

    @contextmanager
    def held(self, worker: Worker, name: str = "early") -> Iterator[AsyncResult[Any]]:
        """Keep a worker from giving the next task to its pool; a task that it has claimed."""
        hold = hold_file(self.site.record.path, worker.name)
        hold.touch()
        result = self.send(name)
        wait_until(lambda: self.site.record.count("held", task_id=result.id), what=self.site.describe)
        try:
            yield result
        finally:
            hold.unlink()

    def take_away(self, result: AsyncResult[Any]) -> None:
        """What the worker would find after a pause that was longer than its lease."""
        reap = (
            "update pgbroker.jobs_live set lease_until = now() - interval '1 s' where task_id = %s; "
            "select new_status from pgbroker.reap()"
        )
        assert self.site.rows(reap, result.id) == [("PENDING",)]

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Nobody gets a connection to the database, and none is left."""
        name = self.site.database.name
        with closing(self.site.database.server.admin()) as admin, admin.cursor() as cursor:
            cursor.execute(f'alter database "{name}" allow_connections false')
            cursor.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
            try:
                yield
            finally:
                cursor.execute(f'alter database "{name}" allow_connections true')

    @contextmanager
    def unreachable_when_begun(self, worker: Worker, name: str) -> Iterator[AsyncResult[Any]]:
        """A task that the worker's pool gets when there is no server any more."""
        with ExitStack() as stack:
            with self.held(worker, name) as result:
                stack.enter_context(self.unreachable())
            yield result

    def assert_ran_once(self, result: AsyncResult[Any]) -> None:
        job = self.site.wait_for(result.id, "DONE", 30)
        assert result.get(timeout=5) == "ran"
        assert job["attempts"] == 1
        assert self.rows_seen(result) == [["EARLY", True]]
        assert self.site.record.count("signal prerun", task_id=result.id) == 1
        assert self.site.record.count("signal failure") == 0


@pytest.fixture
def strict(site: Site) -> Strict:
    return Strict(site)


@pytest.mark.parametrize("pool", POOLS)
def test_the_body_finds_its_start_committed(pool: str, strict: Strict) -> None:
    strict.worker(pool, 1 if pool == "solo" else 2)
    results = [strict.send() for _ in range(10)]
    assert [result.get(timeout=15) for result in results] == ["ran"] * 10
    assert strict.rows_seen(*results) == [["EARLY", True]] * 10
    wait_until(lambda: strict.site.statuses() == {"DONE": 10}, what=strict.site.describe)


def test_each_new_pool_process_commits_starts(strict: Strict) -> None:
    strict.worker("prefork", 1, worker_max_tasks_per_child=1)
    results = [strict.send() for _ in range(3)]
    assert [result.get(timeout=15) for result in results] == ["ran"] * 3
    assert strict.rows_seen(*results) == [["EARLY", True]] * 3
    assert len({event["pid"] for event in strict.site.record.events("start")}) == 3


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_a_worker_that_dies_with_the_first_line_of_the_body_leaves_a_dead_letter(pool: str, strict: Strict) -> None:
    """Without the option the start would never be told, and the task would kill one worker after the other."""
    options = {**STRICT, "lease_seconds": 2, "reap_interval": 0.5}
    first = strict.worker(pool, options=options)
    result = strict.send("kill")
    first.process.wait(15)
    second = strict.worker(pool, options=options)
    job = strict.site.wait_for(result.id, "DEAD")
    assert job["last_error"].startswith("worker lost after start")
    assert strict.site.record.count("start", task_id=result.id) == 1
    assert second.process.poll() is None


def test_late_acknowledgement_is_as_it_was(strict: Strict) -> None:
    strict.worker("prefork", 1)
    result = strict.send("late")
    assert result.get(timeout=15) == "ran"
    assert strict.rows_seen(result)[0] in (["REPORTED", False], ["LATE", True])
    strict.site.wait_for(result.id, "DONE")


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_a_task_whose_job_was_taken_away_does_not_begin(pool: str, strict: Strict) -> None:
    slow = strict.worker(pool)
    with strict.held(slow) as result:
        strict.take_away(result)
        other = strict.worker("solo")
        assert result.get(timeout=15) == "ran"
        strict.site.wait_for(result.id, "DONE")
        other.terminate()
        assert other.wait() == 0
    strict.wait_not_begun(slow, result, "claim ")
    # the pool goes on, and what it says of the task has come to nothing by now
    assert strict.send().get(timeout=15) == "ran"
    assert strict.site.record.count("start", task_id=result.id) == 1
    assert strict.site.record.count("signal prerun", task_id=result.id) == 1
    assert strict.site.record.count("signal failure") == 0
    assert result.state == "SUCCESS"
    assert strict.site.job(result.id)["status"] == "DONE"


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_a_task_does_not_begin_while_the_server_is_unreachable(pool: str, strict: Strict) -> None:
    """Nor does its hard time limit end it, which leaves less time to wait than there would be.

    With gevent the limit does: kombu keeps all greenlets from running while it waits before it connects again.
    """
    worker = strict.worker(pool)
    with strict.unreachable_when_begun(worker, "early" if pool == "gevent" else "limited") as result:
        strict.wait_not_begun(worker, result, "its start could not be recorded")
        assert strict.site.record.count("start") == 0
    strict.assert_ran_once(result)


def test_a_start_that_comes_too_late_is_retracted(strict: Strict) -> None:
    """The row is locked until a soft time limit has ended the wait: the start is recorded when nobody waits for it."""
    worker = strict.worker("prefork")
    with closing(strict.site.database.connect(autocommit=False)) as other, other.cursor() as cursor:
        with strict.held(worker, "soft") as result:
            cursor.execute("select from pgbroker.jobs_live where task_id = %s for update", [result.id])
        strict.wait_not_begun(worker, result, "its start could not be recorded: SoftTimeLimitExceeded")
    strict.assert_ran_once(result)


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_a_start_survives_a_cut_connection(pool: str, strict: Strict) -> None:
    worker = strict.worker(pool)
    assert strict.send().get(timeout=15) == "ran"
    with strict.held(worker) as result:
        assert strict.site.cut_all() >= 3
    strict.assert_ran_once(result)
