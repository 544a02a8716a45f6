"""Tasks over their time limits, and tasks whose pool process dies: on the pools that have such a thing.

One worker of each pool gets all tasks at once; a task may be lost twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from state_site import Row, Seen, States, dead, done, waiting
from state_tasks import MODES
from worker_site import Site, wait_until

MAX_ATTEMPTS = 2

SOFT_LIMIT = "^SoftTimeLimitExceeded: .*Traceback"
HARD_LIMIT = "^TimeLimitExceeded: "
LOST = "^WorkerLostError: .*SIGKILL"
GAVE_UP = f"; loss {MAX_ATTEMPTS} of {MAX_ATTEMPTS}$"

RETRIED = Seen((Row("DONE", 1, "RETRY"), Row("DONE", 1, "SUCCESS")), "SUCCESS", ("retried",))
RETRIED_IN_VAIN = Seen((Row("DONE", 1, "RETRY"), Row("DEAD", 1, "FAILURE")), "FAILURE", ("retried", "buried"))

PREFORK, HARD_POOLS = ("prefork",), ("prefork", "gevent")
BOTH, EARLY = MODES, ("early",)
ALWAYS = 99

#: Pools, modes, task, how often it goes wrong: what is to be seen in the end, and ``last_error``.
ENDS: list[tuple[tuple[str, ...], tuple[str, ...], str, int, Seen, str | None]] = [
    (PREFORK, BOTH, "soft", ALWAYS, dead(), SOFT_LIMIT),
    # a soft limit raises an exception inside the task, which makes it a failure like any other
    (PREFORK, BOTH, "soft_unacked", ALWAYS, dead(), SOFT_LIMIT),
    (HARD_POOLS, BOTH, "hard", ALWAYS, dead(), HARD_LIMIT),
    (HARD_POOLS, BOTH, "hard_undead", ALWAYS, done("FAILURE"), None),
    (HARD_POOLS, EARLY, "hard_unacked", ALWAYS, dead(), HARD_LIMIT),
    (PREFORK, BOTH, "die", ALWAYS, dead(), LOST),
    (PREFORK, EARLY, "die_rejected", ALWAYS, dead(), LOST),
    (PREFORK, BOTH, "die_retried", 1, RETRIED, None),
    (PREFORK, BOTH, "die_retried", ALWAYS, RETRIED_IN_VAIN, LOST),
    (PREFORK, BOTH, "die_afterwards", ALWAYS, done(), None),
]

#: Acknowledged late, and shall run again: pools, task, what is to be seen of its result meanwhile, ``last_error``.
AGAIN: list[tuple[tuple[str, ...], str, str, str]] = [
    # Celery stores the failure also where it puts the message back
    (HARD_POOLS, "hard_unacked", "FAILURE", HARD_LIMIT),
    (PREFORK, "die_rejected", "PENDING", LOST),
]

END_CASES = [
    pytest.param(pool, name, times, mode, expected, error, id=f"{pool}-{name}{'-once' * (times == 1)}-{mode}")
    for pools, modes, name, times, expected, error in ENDS
    for pool in pools
    for mode in modes
]
AGAIN_CASES = [
    pytest.param(pool, name, meanwhile, error, id=f"{pool}-{name}-late")
    for pools, name, meanwhile, error in AGAIN
    for pool in pools
]


class Battery:
    """All tasks of a pool, published together, and the worker that runs them."""

    def __init__(self, states: States) -> None:
        self.states = states
        self.ids: dict[tuple[str, int, str], str] = {}
        for case in END_CASES:
            pool, name, times, mode, *_ = case.values
            if pool == states.pool:
                self.ids[name, times, mode] = states.publish(mode, name, times)
        again = [case.values[1] for case in AGAIN_CASES if case.values[0] == states.pool]
        for name in again:
            for times in (1, ALWAYS):
                self.ids[name, times, "late"] = states.publish("late", name, times, queue=self.queue_of(name))
        queues = [states.queue, *map(self.queue_of, again)]
        states.worker(6, queues=",".join(queues))
        # what comes back shall stay there until the tests have seen it
        claimed = "select 1 from pgbroker.jobs where queue = any (%s) and attempts = 1"
        wait_until(lambda: len(states.site.rows(claimed, queues[1:])) == 2 * len(again), 15, states.site.describe)
        for queue in queues[1:]:
            assert states.site.rows("select pgbroker.pause_queue(%s)", queue) == [("changed",)]

    def queue_of(self, name: str) -> str:
        """The queue of a task that comes back."""
        return f"{name} {self.states.queue}"


@pytest.fixture(scope="module")
def batteries(module_database: Any, tmp_path_factory: Any) -> Iterator[dict[str, Battery]]:
    """By pool."""
    site = Site(module_database, tmp_path_factory.mktemp("limits"))
    found = {pool: Battery(States(site, pool, max_attempts=MAX_ATTEMPTS)) for pool in HARD_POOLS}
    yield found
    for battery in found.values():
        battery.states.close()
    site.close()


@pytest.mark.parametrize(("pool", "name", "times", "mode", "expected", "error"), END_CASES)
def test_ends(
    batteries: dict[str, Battery], pool: str, name: str, times: int, mode: str, expected: Seen, error: str | None
) -> None:
    states, task_id = batteries[pool].states, batteries[pool].ids[name, times, mode]
    states.check(task_id, expected, error)
    assert states.runs(task_id) == sum(row.attempts for row in expected.rows)


@pytest.mark.parametrize(("pool", "name", "meanwhile", "error"), AGAIN_CASES)
def test_runs_again(batteries: dict[str, Battery], pool: str, name: str, meanwhile: str, error: str) -> None:
    """With back-off, until it ends well or has been lost ``max_attempts`` times."""
    battery = batteries[pool]
    states, once, always = battery.states, battery.ids[name, 1, "late"], battery.ids[name, ALWAYS, "late"]
    for task_id in (once, always):
        states.check(task_id, waiting(1, ("failed",), meanwhile), error)
        assert states.end_back_off(task_id) == pytest.approx(5, abs=0.5)
    states.site.rows("select pgbroker.pause_queue(%s, false)", battery.queue_of(name))
    states.check(once, done(attempts=2, events=("failed",)))
    states.check(always, dead(attempts=2, events=("failed", "buried")), error + ".*" + GAVE_UP)
    assert (states.runs(once), states.runs(always)) == (2, 2)
