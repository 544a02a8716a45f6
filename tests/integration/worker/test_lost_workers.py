"""A worker is killed with its whole session: what it held comes back by the rules of its ack mode.

In the default run this is proved by test_state_losses.py.
"""

from __future__ import annotations

import pytest
from worker_site import POOLS, Site, wait_until

pytestmark = pytest.mark.slow

LEASE = {"lease_seconds": 2, "reap_interval": 0.5}


@pytest.mark.parametrize("pool", POOLS[:-1])  # gevent's takes one at a time
def test_runs_a_late_acknowledged_task_again_and_the_unstarted_ones_once(pool: str, site: Site) -> None:
    running = site.app.tasks["app.late_sleep"].delay(4)
    waiting = [site.app.tasks["app.late_sleep"].delay(0.01).id for _ in range(3)]
    worker = site.worker(pool, 1, worker_prefetch_multiplier=4, options=LEASE)
    wait_until(lambda: site.job(running.id).get("started_at"), what=site.describe)
    # a solo worker cannot take up what it fetched while its one thread is busy, and gives it back
    held = {"RUNNING": 1, "PENDING": 3} if pool == "solo" else {"RUNNING": 4}
    wait_until(lambda: site.statuses() == held, what=site.describe)
    worker.kill()
    site.worker("threads", 2, options=LEASE)
    wait_until(lambda: site.statuses() == {"DONE": 4}, 15, site.describe)
    assert site.record.runs() == {running.id: 2, **dict.fromkeys(waiting, 1)}
    first, again = site.record.events("start", task_id=running.id)
    assert first["info"].items() >= {"redelivered": False, "attempts": 1}.items()
    assert again["info"].items() >= {"redelivered": True, "attempts": 2}.items()
    assert "lease-expired reclaim" in site.job(running.id)["last_error"]
    for task_id in waiting:
        (start,) = site.record.events("start", task_id=task_id)
        assert start["info"].items() >= {"redelivered": False, "attempts": 1}.items()
        assert site.job(task_id)["attempts"] == 1


@pytest.mark.parametrize("pool", POOLS)
def test_never_runs_an_early_acknowledged_task_again(pool: str, site: Site) -> None:
    running = site.app.tasks["app.sleep"].delay(30)
    worker = site.worker(pool, 1, options=LEASE)
    wait_until(lambda: site.job(running.id).get("started_at"), 3, site.describe)
    worker.kill()
    site.worker("solo", 1, options=LEASE)
    assert "worker lost after start" in site.wait_for(running.id, "DEAD", 10)["last_error"]
    assert site.record.runs() == {running.id: 1}


def test_gives_up_after_max_attempts(site: Site) -> None:
    """A task that kills its worker must not go round for ever."""
    options = {**LEASE, "max_attempts": 2}
    app = site.make_app(broker_transport_options=options)
    deadly = app.tasks["app.late_sleep"].delay(30)
    for run in (1, 2):
        worker = site.worker("solo", 1, options=options)
        wait_until(lambda run=run: site.record.count("start") == run, 15, site.describe)
        wait_until(lambda: site.job(deadly.id).get("started_at"), 5, site.describe)
        worker.kill()
    site.worker("solo", 1, options=options)
    assert "attempt 2 of 2" in site.wait_for(deadly.id, "DEAD", 10)["last_error"]
    app.close()
