"""The schema is dropped under a running worker: it says so and goes on when there is one again."""

from __future__ import annotations

import pytest
from worker_site import Site, wait_until

from pgbroker.options import Options
from pgbroker.postgres import migrate


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_makes_the_schema_again(site: Site, pool: str) -> None:
    worker = site.worker(pool, 1, options={"lease_seconds": 2})
    assert site.app.tasks["app.add"].delay(1, 2).get(timeout=10) == 3
    site.rows("drop schema pgbroker cascade")
    wait_until(lambda: site.rows("select to_regprocedure('pgbroker.history_seconds()')") != [(None,)])
    wait_until(lambda: site.rows("select 1 from pgbroker.consumers"))
    assert site.app.tasks["app.add"].delay(2, 2).get(timeout=10) == 4
    told = [line for line in worker.output().splitlines() if "was dropped or changed" in line]
    assert sum("consumer: Connection to broker lost" in line for line in told) == 1
    assert "Traceback" not in worker.output()
    assert "refused" not in worker.output()
    worker.terminate()
    assert worker.wait() == 0


def test_a_worker_that_may_not_make_it_waits_for_it(site: Site) -> None:
    url = f"{site.database.url}&auto_migrate=false"
    migrate.upgrade(Options.from_url(url))
    worker = site.worker("solo", url=url, options={"lease_seconds": 2})
    site.rows("drop schema pgbroker cascade")
    wait_until(lambda: "Trying again in" in worker.output(), what=worker.output)
    assert "run: celery -A APP pgbroker migrate" in worker.output()
    migrate.upgrade(Options.from_url(url))
    wait_until(lambda: site.rows("select 1 from pgbroker.consumers"), what=worker.output)
    assert site.app.tasks["app.add"].delay(2, 2).get(timeout=10) == 4
    assert "Traceback" not in worker.output()
    told = [line for line in worker.output().splitlines() if "schema" in line]
    assert len(told) <= 4, told  # the consumer, the first attempt or two, the lease thread
    assert not any("refused" in line or "LINE 1" in line for line in told)
