"""Every connection to the server is cut at once: workers and publishers go on, and nothing runs twice."""

from __future__ import annotations

import time

import pytest
from ends_site import Ends
from worker_site import POOLS, PREFORK_FIRST, Site, wait_until

#: Tasks under cut connections.
COUNT = 1500


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_goes_on_after_all_connections_were_cut(pool: str, site: Site) -> None:
    add, late_sleep = site.app.tasks["app.add"], site.app.tasks["app.late_sleep"]
    site.worker(pool, 2 if pool != "solo" else 1, options={"lease_seconds": 4})
    running = late_sleep.delay(3)
    wait_until(lambda: site.job(running.id).get("started_at"), what=site.describe)
    assert site.cut_all() >= 3
    since = time.monotonic()
    after = add.delay(2, 2)
    site.wait_for(after.id, "DONE", 10)
    assert time.monotonic() - since < 10
    site.wait_for(running.id, "DONE", 10)
    assert after.get(timeout=5) == 4
    assert running.get(timeout=5) == "slept"
    assert site.record.runs() == {running.id: 1, after.id: 1}
    # woken by notifications again, not by the slow poll
    before = time.monotonic()
    again = add.delay(3, 3)
    site.wait_for(again.id, "DONE", 10)
    assert time.monotonic() - before < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_runs_what_was_prefetched_once_after_a_cut(pool: str, site: Site) -> None:
    """Another worker gets what is given back; the first must not start its own copy of it."""
    first = site.app.tasks["app.late_sleep"].delay(4)
    ids = [site.app.tasks["app.late_sleep"].delay(0.05).id for _ in range(7)]
    site.worker(pool, 1, worker_prefetch_multiplier=8)
    wait_until(lambda: site.statuses() == {"RUNNING": 8}, what=site.describe)
    wait_until(lambda: site.job(first.id)["started_at"], what=site.describe)
    site.cut_all()
    site.worker("solo", 1)
    wait_until(lambda: site.statuses() == {"DONE": 8}, 20, site.describe)
    # whoever still means to run a copy has the time for it
    since = time.monotonic()
    wait_until(lambda: time.monotonic() > since + 1, 2)
    assert site.record.runs() == dict.fromkeys([first.id, *ids], 1)


@pytest.mark.slow
@pytest.mark.parametrize("ack", ["early", "late"])
def test_runs_each_task_once_while_connections_are_cut(ack: str, own: Ends) -> None:
    """A task that a prefork child has been given, and not reported as begun, is not given back to run again."""
    own.worker("prefork", 2, options={"lease_seconds": 10})
    ids = [own.tasks[f"ends.{ack}"].delay(0.004).id for _ in range(COUNT)]
    cuts = 0
    since = time.monotonic()
    while own.site.record.count("end") < COUNT and time.monotonic() < since + 60:
        pause_until = time.monotonic() + 0.6
        wait_until(lambda until=pause_until: time.monotonic() > until)  # type: ignore[misc]
        cuts += bool(own.site.cut_all())
    wait_until(lambda: own.site.statuses(ids) == {"DONE": COUNT}, 30, own.site.describe)
    assert cuts > 8
    runs = own.site.record.runs()
    assert {i: n for i, n in runs.items() if n != 1} == {}
    assert set(runs) == set(ids)
