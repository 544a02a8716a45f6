"""What an application can expect of every pool, with one worker of each."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import pytest
from app import RETRIES
from celery import group
from worker_site import POOLS, Site, wait_until


@pytest.fixture(scope="module", params=POOLS)
def pool(request: pytest.FixtureRequest, module_database: Any, tmp_path_factory: Any) -> Iterator[Site]:
    """A site whose default queue is served by one worker of the pool."""
    name = request.param
    site = Site(module_database, tmp_path_factory.mktemp(name))
    site.app.conf.task_default_queue = f"on {name}"
    site.worker(name, 1 if name == "solo" else 2, queues=f"on {name}")
    yield site
    site.close()


def test_runs_a_task_once_and_hands_its_result_over(pool: Site) -> None:
    result = pool.app.tasks["app.add"].delay(2, 3)
    assert result.get(timeout=10) == 5
    job = pool.wait_for(result.id, "DONE")
    assert job["attempts"] == 1
    assert job["result_state"] == "SUCCESS"
    assert pool.record.runs()[result.id] == 1


def test_holds_a_countdown_in_the_database_and_starts_it_on_time(pool: Site) -> None:
    before = time.time()
    result = pool.app.tasks["app.add"].apply_async((1, 1), countdown=1)
    wait_until(lambda: time.time() > before + 0.5, 2)
    assert pool.job(result.id)["status"] == "PENDING"
    assert result.get(timeout=10) == 2
    (start,) = pool.record.events("start", task_id=result.id)
    assert start["at"] - before == pytest.approx(1, abs=0.3)


def test_takes_an_aware_eta(pool: Site) -> None:
    eta = dt.datetime.now(dt.timezone(dt.timedelta(hours=5))) + dt.timedelta(seconds=0.7)
    result = pool.app.tasks["app.add"].apply_async((1, 1), eta=eta)
    assert result.get(timeout=10) == 2
    (start,) = pool.record.events("start", task_id=result.id)
    assert start["at"] - eta.timestamp() == pytest.approx(0, abs=0.3)


def test_buries_a_failed_task_with_its_traceback(pool: Site) -> None:
    result = pool.app.tasks["app.fail"].delay("no such luck")
    with pytest.raises(ValueError, match="no such luck"):
        result.get(timeout=10)
    job = pool.wait_for(result.id, "DEAD")
    assert job["last_error"].startswith("ValueError: no such luck\n")
    assert "Traceback (most recent call last)" in job["last_error"]
    assert "raise ValueError(text)" in job["last_error"]


def test_retries_under_the_same_task_id(pool: Site) -> None:
    result = pool.app.tasks["app.retry"].delay()
    assert result.get(timeout=10) == RETRIES
    pool.wait_for(result.id, "DONE")
    wait_until(lambda: pool.statuses([result.id]) == {"DONE": RETRIES + 1}, what=lambda: pool.describe(result.id))
    assert [e["retries"] for e in pool.record.events("start", task_id=result.id)] == list(range(RETRIES + 1))


def test_shows_an_early_acknowledged_task_as_started_while_it_runs(pool: Site) -> None:
    result = pool.app.tasks["app.sleep"].delay(1)
    wait_until(lambda: pool.job(result.id).get("started_at"), 5, lambda: pool.describe(result.id))
    job = pool.job(result.id)
    assert job["status"] == "RUNNING"
    assert pool.record.count("end", task_id=result.id) == 0
    pool.wait_for(result.id, "DONE")


def test_runs_a_late_acknowledged_task_once(pool: Site) -> None:
    result = pool.app.tasks["app.late_sleep"].delay(0.3)
    wait_until(lambda: pool.job(result.id).get("started_at"), 5, lambda: pool.describe(result.id))
    assert result.get(timeout=10) == "slept"
    pool.wait_for(result.id, "DONE")
    assert pool.record.runs()[result.id] == 1


def test_tells_a_task_where_it_came_from(pool: Site) -> None:
    result = pool.app.tasks["app.add"].delay(1, 1)
    result.get(timeout=10)
    (start,) = pool.record.events("start", task_id=result.id)
    ((job_id,),) = pool.rows("select job_id from pgbroker.job_log where task_id = %s", result.id)
    assert (
        start["info"].items()
        >= {
            "exchange": "",
            "routing_key": pool.app.conf.task_default_queue,
            "redelivered": False,
            "attempts": 1,
            "job_id": job_id,
        }.items()
    )


def test_runs_a_group(pool: Site) -> None:
    add = pool.app.tasks["app.add"]
    results = group(add.s(number, number) for number in range(20))()
    assert results.get(timeout=20) == [2 * number for number in range(20)]
    ids = [result.id for result in results]
    wait_until(lambda: pool.statuses(ids) == {"DONE": 20}, what=pool.describe)


def test_publishes_from_inside_a_task(pool: Site) -> None:
    publish = pool.app.tasks["app.publish"].apply_async((5,), queue=pool.app.conf.task_default_queue)
    wait_until(lambda: pool.job(publish.id).get("status") == "DONE", what=lambda: pool.describe(publish.id))
    ids = publish.get(timeout=10)
    # tasks go where the worker's own application sends them
    assert pool.statuses(ids) == {"PENDING": 5}
    assert pool.app.control.purge() == 0
    queue = pool.app.connection_for_write()
    with queue as connection:
        assert connection.default_channel.queue_purge("celery") == 5
    assert pool.statuses(ids) == {"CANCELLED": 5}


def test_answers_a_ping_and_tells_its_queues(pool: Site) -> None:
    inspect = pool.app.control.inspect(timeout=3, limit=1)
    (name,) = inspect.ping()
    assert inspect.ping() == {name: {"ok": "pong"}}
    assert [queue["name"] for queue in inspect.active_queues()[name]] == [pool.app.conf.task_default_queue]


@pytest.mark.parametrize("name", POOLS)
def test_starts_the_highest_priority_first(name: str, site: Site) -> None:
    priorities = [0, 3, 9, 5, 3, 9, 0, 7]
    add = site.app.tasks["app.add"]
    ids = [add.apply_async((1, 1), priority=priority).id for priority in priorities]
    site.worker(name, 1, options={}, worker_prefetch_multiplier=1)
    wait_until(lambda: site.record.count("start") == len(ids), what=site.describe)
    wanted = [ids[at] for at in sorted(range(len(ids)), key=lambda at: (-priorities[at], at))]
    assert [entry["task_id"] for entry in site.record.events("start")] == wanted
