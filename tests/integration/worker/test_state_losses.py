"""A worker is killed with all that it holds, twice; and one that stops gives back what has not begun."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from state_site import LEASE, TWO_FIRST, Seen, States, dead, done, waiting
from worker_site import Site, Worker, wait_until

RECLAIM = "lease-expired reclaim: lease of "


class Noted(NamedTuple):
    """What was to be seen of a task at one time."""

    seen: Seen
    last_error: str
    due_in_seconds: float


class Losses:
    """Tasks of which one worker after the other dies, and what was to be seen of them after each death.

    The worker that takes back what was lost serves another queue, so that it can be seen lying there.

    Attributes:
        early: Acknowledged early, running in the first worker.
        twice: Acknowledged late, running in both workers, to be lost twice at most.
        thrice: The same, to be lost three times at most.
        held: Held by the first worker, not begun; run by the second.
        after: By task, what was to be seen after the first death and after the second.
    """

    def __init__(self, site: Site, pool: str) -> None:
        twice, self.states = States(site, pool, max_attempts=2), States(site, pool, max_attempts=3)
        states = self.states
        self.early = states.publish("early", "sleep", 60)
        self.twice = twice.publish("late", "sleep", 60)
        self.thrice = states.publish("late", "sleep", 60)
        quick = [states.publish(mode, "succeed") for mode in ("early", "late", "early", "late")]
        self.after: dict[str, list[Noted]] = {}
        site.worker("solo", 1, queues="elsewhere", options=LEASE, imports=["state_tasks"])

        workers = self.start_workers(running=3)
        states.wait_started(self.early, self.twice, self.thrice)
        self.held = self.wait_held(quick)
        self.lose(workers, self.early, self.twice, self.thrice, *self.held)

        workers = self.start_workers(running=2)
        states.wait_started(self.twice, self.thrice)
        states.wait_status("DONE", *self.held)
        self.lose(workers, self.twice, self.thrice)
        twice.close()

    def start_workers(self, running: int) -> list[Worker]:
        """Workers that have one slot more than there are long tasks; solo ones have one each."""
        slots, count = (1, running) if self.states.pool == "solo" else (3, 1)
        conf = {"options": LEASE, "worker_prefetch_multiplier": 3}
        workers = [self.states.worker(slots, wait=False, **conf) for _ in range(count)]
        for worker in workers:
            worker.wait_ready()
        return workers

    def wait_held(self, task_ids: list[str]) -> list[str]:
        """Those that the worker keeps: gevent's takes one at a time, solo's gives back what it cannot take up."""
        count = {"solo": 0, "gevent": 1}.get(self.states.pool, len(task_ids))
        sql = "select task_id from pgbroker.jobs_live where task_id = any (%s) and status = 'RUNNING'"
        wait_until(lambda: len(self.states.site.rows(sql, task_ids)) == count, 15, self.states.site.describe)
        return [task_id for (task_id,) in self.states.site.rows(sql, task_ids)]

    def lose(self, workers: list[Worker], *task_ids: str) -> None:
        """Kill the workers, wait until somebody has noticed, and note what is to be seen of the tasks."""
        for worker in workers:
            worker.kill()
        site = self.states.site
        held = "select 1 from pgbroker.jobs_live where queue = %s and status = 'RUNNING'"
        wait_until(lambda: not site.rows(held, self.states.queue), 10, site.describe)
        wait_until(lambda: not site.rows("select 1 from pgbroker.outcome_outbox"), 10, site.describe)
        for task_id in task_ids:
            ((last_error, due),) = site.rows(
                "select last_error, extract(epoch from run_after - clock_timestamp())::float8"
                " from pgbroker.jobs where task_id = %s",
                task_id,
            )
            self.after.setdefault(task_id, []).append(Noted(self.states.seen(task_id), last_error, due))


@pytest.fixture(scope="module", params=TWO_FIRST)
def losses(request: pytest.FixtureRequest, module_database: Any, tmp_path_factory: Any) -> Iterator[Losses]:
    site = Site(module_database, tmp_path_factory.mktemp(request.param))
    try:
        losses = Losses(site, request.param)
        yield losses
        losses.states.close()
    finally:
        site.close()


def test_started_early_is_dead(losses: Losses) -> None:
    (after,) = losses.after[losses.early]
    assert after.seen == dead()
    assert after.last_error.startswith("worker lost after start: lease of ")
    assert losses.states.runs(losses.early) == 1


def test_started_late_comes_back_at_once(losses: Losses) -> None:
    for task_id in (losses.twice, losses.thrice):
        after = losses.after[task_id][0]
        assert after.seen == waiting(1, ("lost",))
        assert after.last_error.startswith(RECLAIM)
        assert after.due_in_seconds < 0


def test_started_late_comes_back_with_back_off_after_that(losses: Losses) -> None:
    after = losses.after[losses.thrice][1]
    assert after.seen == waiting(2, ("lost", "lost"))
    assert after.last_error.startswith(RECLAIM)
    assert after.due_in_seconds == pytest.approx(4, abs=2)
    assert losses.states.runs(losses.thrice) == 2


def test_started_late_is_dead_after_max_attempts(losses: Losses) -> None:
    after = losses.after[losses.twice][1]
    assert after.seen == dead(attempts=2, events=("lost", "buried"))
    assert after.last_error.endswith("; loss 2 of 2")
    assert losses.states.runs(losses.twice) == 2


def test_not_started_comes_back_as_if_nothing_had_happened(losses: Losses) -> None:
    """But for solo, whose worker gives back what it cannot take up before anything can happen to it."""
    assert losses.held or losses.states.pool == "solo"
    for task_id in losses.held:
        (after,) = losses.after[task_id]
        assert after.seen == waiting(0, ("lost",))
        assert after.last_error.startswith(RECLAIM)
        assert after.due_in_seconds < 0
        losses.states.check(task_id, dataclasses.replace(done(), events=("lost",)), f"^{RECLAIM}")
        assert losses.states.runs(task_id) == 1


@pytest.mark.parametrize("pool", TWO_FIRST)
def test_warm_stop(pool: str, site: Site) -> None:
    """What runs ends; what is held and has not begun goes back to its place, as if it had never been claimed."""
    states = States(site, pool)
    running = states.publish("late", "sleep", 2)
    held = [states.publish(mode, "succeed") for mode in ("early", "late", "early", "late")]
    worker = states.worker(1, worker_prefetch_multiplier=8)
    states.wait_started(running)
    worker.terminate()
    assert worker.wait(15) == 0
    states.check(running, done())
    # gevent's pool keeps the consumer waiting with one task in its hands: that one runs here
    run_here = [task_id for task_id in held if states.runs(task_id)]
    assert len(run_here) <= (1 if pool == "gevent" else 0)
    for task_id in held:
        states.check(task_id, done() if task_id in run_here else waiting(0))
    states.close()
