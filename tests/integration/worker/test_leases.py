"""Leases hold while a task burns the CPU for longer than a lease, whatever the pool."""

from __future__ import annotations

import pytest
from worker_site import PREFORK_FIRST, Site, wait_until

LEASE = {"lease_seconds": 2, "reap_interval": 0.3}


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_renews_under_a_task_that_hogs_the_cpu(pool: str, site: Site) -> None:
    result = site.app.tasks["app.burn"].delay(5)
    site.worker(pool, 1, options=LEASE)
    wait_until(lambda: site.record.count("start") == 1, what=site.describe)
    # an idle one beside it: it reaps what runs out, and would run it again
    site.worker("solo", 1, options=LEASE)
    site.wait_for(result.id, "DONE", 15)
    assert site.record.runs() == {result.id: 1}
    assert site.job(result.id)["attempts"] == 1
    assert site.rows("select kind from pgbroker.job_events") == []
