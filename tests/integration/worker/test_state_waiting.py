"""Jobs that end before their tasks begin, and tasks that are revoked while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.utils import uuid
from state_site import States, cancelled, done, key_of
from state_tasks import MODES
from worker_site import POOLS, Site

from pgbroker import JobQueue


@pytest.fixture(scope="module", params=POOLS)
def states(request: pytest.FixtureRequest, module_database: Any, tmp_path_factory: Any) -> Iterator[States]:
    """One worker of each pool, which serves a queue and tells Celery of what ends in all of them."""
    site = Site(module_database, tmp_path_factory.mktemp(request.param))
    states = States(site, request.param)
    for mode in MODES:
        states.publish(mode, "succeed", queue=f"expiring {states.queue}", expires=0.2)
    states.worker(2)
    yield states
    states.close()
    site.close()


# -- before they begin ----------------------------------------------------------------------------------


def revoke(states: States, ids: dict[str, str], queue: str) -> None:
    states.app.control.revoke(list(ids.values()))


def cancel(states: States, ids: dict[str, str], queue: str) -> None:
    jobs = JobQueue(states.site.database.url)
    for task_id in ids.values():
        job = jobs.find_active(key_of(task_id))
        assert job is not None
        assert jobs.cancel(job.job_id) == job.job_id


def purge(states: States, ids: dict[str, str], queue: str) -> None:
    with states.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge(queue) == len(ids)


def delete(states: States, ids: dict[str, str], queue: str) -> None:
    with states.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(queue)
    assert states.site.rows("select 1 from pgbroker.queues where name = %s", queue) == []


#: What ends jobs that wait, and what ``last_error`` says of it.
ENDINGS: dict[str, tuple[Callable[[States, dict[str, str], str], None], str]] = {
    "revoked": (revoke, "^revoked$"),
    "cancelled": (cancel, "^cancelled$"),
    "purged": (purge, "^queue purged$"),
    "deleted": (delete, "^queue purged$"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_ends_while_it_waits(name: str, states: States) -> None:
    end, reason = ENDINGS[name]
    queue = f"{name} {states.queue}"
    ids = states.publish_both("succeed", queue=queue)
    end(states, ids, queue)
    for task_id in ids.values():
        states.check(task_id, cancelled(events=("revoked",) if name in ("revoked", "cancelled") else ()), reason)
        assert states.runs(task_id) == 0


def test_expires_while_it_waits(states: States) -> None:
    sql = "select task_id from pgbroker.job_log where queue = %s"
    ids = [task_id for (task_id,) in states.site.rows(sql, f"expiring {states.queue}")]
    assert len(ids) == len(MODES)
    for task_id in ids:
        states.check(task_id, cancelled(events=()), "^expired before it was claimed$")
        assert states.runs(task_id) == 0


def test_revoked_before_it_is_published(states: States) -> None:
    ids = {mode: uuid() for mode in MODES}
    states.app.control.revoke(list(ids.values()))
    for mode, task_id in ids.items():
        states.app.tasks[f"state.{mode}.succeed"].apply_async(task_id=task_id, dedupe_key=key_of(task_id))
        states.check(task_id, cancelled(), "^revoked before it was published$")
        assert states.runs(task_id) == 0


@pytest.mark.parametrize("pool", ["prefork"])
def test_ends_while_a_worker_holds_it(pool: str, site: Site) -> None:
    """Revoked or expired; Celery looks at that when a process is free."""
    states = States(site, pool)
    states.worker(1, worker_prefetch_multiplier=8)
    running = states.publish("early", "sleep", 1.5)
    states.wait_started(running)
    revoked = states.publish_both("succeed")
    expired = states.publish_both("succeed", expires=1)
    held = [*revoked.values(), *expired.values()]
    states.wait_status("RUNNING", *held)
    states.app.control.revoke(list(revoked.values()))
    for task_id in held:
        states.check(task_id, cancelled(attempts=1), "^revoked or expired while a worker held it$")
        assert states.runs(task_id) == 0
    states.check(running, done())
    states.close()


# -- while they run -------------------------------------------------------------------------------------


def start_and_revoke(states: States, seconds: float, **options: Any) -> list[str]:
    """Revoke a task of each mode when it runs; a solo worker runs one after the other."""
    ids = list(states.publish_both("sleep", seconds).values())
    for task_id in ids:
        states.wait_started(task_id)
        states.app.control.revoke(task_id, **options)
    return ids


def test_revoked_with_terminate(states: States) -> None:
    """Where the pool can end a task; elsewhere it runs on."""
    can_end = states.pool in ("prefork", "gevent")
    for task_id in start_and_revoke(states, 30 if can_end else 0.5, terminate=True):
        states.check(task_id, cancelled(attempts=1) if can_end else done())
        assert states.runs(task_id) == 1
        assert states.site.record.count("end", task_id=task_id) == (0 if can_end else 1)
    assert states.app.tasks["state.early.succeed"].delay().get(timeout=10) == "done"


def test_revoked_without_terminate_runs_on(states: States) -> None:
    for task_id in start_and_revoke(states, 0.5):
        states.check(task_id, done())
        assert states.runs(task_id) == 1
