"""Worker options that come between a claim and its task: nothing runs twice, nothing is lost, leases hold."""

from __future__ import annotations

import pytest
from state_site import LEASE, TWO_FIRST, States, done
from state_tasks import MODES
from worker_site import Site, wait_until


@pytest.mark.parametrize("pool", ["prefork"])
def test_max_tasks_per_child(pool: str, site: Site) -> None:
    """Processes come and go. ``-O fair`` is Celery's default, and said here all the same."""
    states = States(site, pool)
    long = states.publish("late", "sleep", 1)
    ids = [states.publish(mode, "succeed") for mode in MODES for _ in range(6)]
    states.worker(2, "--max-tasks-per-child=2", "-O", "fair", options=LEASE, worker_prefetch_multiplier=8)
    for task_id in (long, *ids):
        states.check(task_id, done())
        assert states.runs(task_id) == 1
    pids = {event["pid"] for event in site.record.events("start")}
    assert len(pids) >= len(ids) / 2
    states.close()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_autoscale(pool: str, site: Site) -> None:
    """A worker that grows while it holds jobs."""
    states = States(site, pool)
    states.worker(1, "--autoscale=2,1", options=LEASE, worker_prefetch_multiplier=4)
    ids = states.publish_both("sleep", 2).values()
    wait_until(lambda: site.record.count("start") == 2, 15, site.describe)
    assert site.record.count("end") == 0
    for task_id in ids:
        states.check(task_id, done())
        assert states.runs(task_id) == 1
    states.close()


@pytest.mark.parametrize("pool", TWO_FIRST)
def test_rate_limit(pool: str, site: Site) -> None:
    """What waits for its turn in the worker keeps its lease, and is not run by another worker that is idle."""
    states = States(site, pool)
    ids = [states.publish(mode, "limited") for mode in MODES for _ in range(4)]
    states.worker(2, options=LEASE, worker_prefetch_multiplier=8)
    states.wait_status("RUNNING", *ids[2:4], *ids[6:])
    other = site.worker("solo", 1, queues=states.queue, options=LEASE, imports=["state_tasks"])
    for task_id in ids:
        states.check(task_id, done())
        assert states.runs(task_id) == 1
    starts = sorted(event["at"] for event in site.record.events("start"))
    assert starts[-1] - starts[0] > LEASE["lease_seconds"]
    workers = site.rows("select distinct worker from pgbroker.job_log")
    assert len(workers) == 1
    assert f":{other.pid}:" not in workers[0][0]
    states.close()
