"""A free slot never idles beside a ready job, and a worker holds what its settings say."""

from __future__ import annotations

import pytest
from worker_site import Site, wait_until


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_fills_the_last_free_slot(pool: str, site: Site) -> None:
    """Three of four slots run long tasks that are acknowledged late, and the queue was empty for a while."""
    for _ in range(3):
        site.app.tasks["app.late_sleep"].delay(6)
    site.worker(pool, 4, worker_prefetch_multiplier=1)
    wait_until(lambda: site.record.count("start") == 3, what=site.describe)
    for _ in range(3):
        quick = site.app.tasks["app.late_sleep"].delay(0)
        site.wait_for(quick.id, "DONE", 1.5)
    assert site.record.count("end") == 3


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "gevent"))]
)
def test_claims_only_what_a_free_slot_can_start(pool: str, site: Site) -> None:
    ids = [site.app.tasks["app.sleep"].delay(2).id for _ in range(2)]
    ids += [site.app.tasks["app.add"].delay(1, 1).id for _ in range(6)]
    site.worker(pool, 2, worker_prefetch_multiplier=4, options={"claim_when_free": True})
    wait_until(lambda: site.record.count("start") == 2, what=site.describe)
    assert site.statuses() == {"RUNNING": 2, "PENDING": 6}
    wait_until(lambda: site.statuses() == {"DONE": 8}, 10, site.describe)
    assert site.record.runs() == dict.fromkeys(ids, 1)


def test_holds_a_whole_window_without_that_option(site: Site) -> None:
    for _ in range(2):
        site.app.tasks["app.late_sleep"].delay(2)
    for _ in range(8):
        site.app.tasks["app.late_sleep"].delay(0)
    site.worker("prefork", 2, worker_prefetch_multiplier=4)
    wait_until(lambda: site.statuses() == {"RUNNING": 8, "PENDING": 2}, what=site.describe)
    wait_until(lambda: site.statuses() == {"DONE": 10}, 10, site.describe)


def test_fills_the_window_behind_a_long_task(site: Site) -> None:
    """Jobs that trickle in one by one, each less than half a window."""
    site.worker("prefork", 1, worker_prefetch_multiplier=8)
    site.app.tasks["app.late_sleep"].delay(3)
    wait_until(lambda: site.record.count("start") == 1, what=site.describe)
    for number in range(1, 8):
        site.app.tasks["app.late_sleep"].delay(0)
        wait_until(lambda number=number: site.statuses() == {"RUNNING": number + 1}, 1, site.describe)
