"""A warm shutdown: what has not started goes back at once, what runs ends, nothing runs twice."""

from __future__ import annotations

import tempfile
import time

import pytest
from worker_site import PREFORK_FIRST, Site, wait_until


@pytest.mark.parametrize("task", ["late_sleep", pytest.param("sleep", marks=pytest.mark.slow)])
@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_gives_back_what_has_not_started(pool: str, task: str, site: Site) -> None:
    first = site.app.tasks[f"app.{task}"].delay(5)
    ids = [site.app.tasks[f"app.{task}"].delay(0.01).id for _ in range(8)]
    stopping = site.worker(pool, 1, worker_prefetch_multiplier=9)
    wait_until(lambda: site.record.count("start") == 1, what=site.describe)
    assert site.statuses() == {"RUNNING": 9}
    other = site.worker("solo", 1, wait=False)
    stopping.terminate()
    since = time.monotonic()
    other.wait_ready()
    # gevent's pool blocks the consumer with one task in its hands until a slot is free: that one runs here
    wanted = 7 if pool == "gevent" else 8
    wait_until(lambda: sum(site.record.runs()[i] for i in ids) == wanted, 4, site.describe)
    assert site.record.count("end", task_id=first.id) == 0
    assert time.monotonic() - since < 4.5
    assert stopping.wait(15) == 0
    wait_until(lambda: site.statuses() == {"DONE": 9}, 5, site.describe)
    assert set(site.record.runs().values()) == {1}
    assert [attempts for (attempts,) in site.rows("select distinct attempts from pgbroker.job_log")] == [1]


def test_gives_back_what_a_solo_worker_had_claimed_together(site: Site) -> None:
    """It was handed over in one claim; the second task must not start after the signal."""
    ids = [site.app.tasks["app.sleep"].delay(2).id] + [site.app.tasks["app.sleep"].delay(0.01).id for _ in range(4)]
    worker = site.worker("solo", 1, worker_prefetch_multiplier=5)
    wait_until(lambda: site.record.count("start") == 1, what=site.describe)
    assert site.statuses(ids) == {"RUNNING": 5}
    worker.terminate()
    wait_until(lambda: site.statuses(ids) == {"RUNNING": 1, "PENDING": 4}, 1.9, site.describe)
    assert worker.wait(10) == 0
    assert site.statuses(ids) == {"DONE": 1, "PENDING": 4}
    assert site.record.count("start") == 1


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_leaves_nothing_behind_when_idle(pool: str, site: Site) -> None:
    worker = site.worker(pool, 1)
    result = site.app.tasks["app.add"].delay(1, 1)
    assert result.get(timeout=10) == 2
    worker.terminate()
    assert worker.wait(10) == 0
    assert site.statuses() == {"DONE": 1}
    assert site.rows("select queue from pgbroker.consumers") == []
    assert site.rows("select name from pgbroker.transient_queues where name like %s", "%pidbox") == []


def test_says_nothing_of_the_embedded_server_that_goes_with_it(site: Site) -> None:
    with tempfile.TemporaryDirectory(prefix="pgb-") as folder:
        worker = site.worker("solo", 1, url=f"pgbroker+embedded://{folder}/server?lease_seconds=2")
        worker.terminate()
        assert worker.wait(15) == 0
        assert "embedded PostgreSQL" in worker.output()
        said = worker.output().split("Warm shutdown")[-1]
        assert not any(word in said for word in ("WARNING", "ERROR", "Traceback")), said
