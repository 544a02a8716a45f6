"""Many workers on one queue: every task runs exactly once, also while workers come and go."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
from worker_site import Site, wait_until


def publish(site: Site, count: int, task: str = "app.add", *arguments: object) -> list[str]:
    with site.app.pool.acquire(block=True) as connection:
        producer = site.app.amqp.Producer(connection)
        return [site.app.tasks[task].apply_async(arguments, producer=producer).id for _ in range(count)]


@pytest.mark.slow
def test_eight_workers_run_each_of_5000_tasks_once(site: Site) -> None:
    workers = [
        site.worker(pool, 1, wait=False, task_ignore_result=True) for pool in ("solo", "prefork") for _ in range(4)
    ]
    ids = publish(site, 5000, "app.add", 1, 1)
    for worker in workers:
        worker.wait_ready()
    wait_until(lambda: site.statuses() == {"DONE": 5000}, 50, site.describe)
    assert site.record.runs() == dict.fromkeys(ids, 1)
    assert len({entry["pid"] for entry in site.record.events("start")}) == 8
    assert site.rows("select kind from pgbroker.job_events") == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["app.sleep", "app.late_sleep"])
def test_rolling_restarts_under_load_run_nothing_twice(task: str, site: Site) -> None:
    """SIGTERM hits each worker in full flow: a task on its way into the pool must not be given back too."""
    ids = publish(site, 2500, task, 0.02)
    workers = [site.worker(pool, 2, wait=False) for pool in ("prefork", "threads", "prefork")]
    for worker in workers:
        worker.wait_ready()
        seen = site.record.count("end")
        wait_until(lambda seen=seen: site.record.count("end") > seen + 50, 20, site.describe)
        worker.terminate()
        assert worker.wait(15) == 0
        site.worker("prefork", 2)
    wait_until(lambda: site.statuses() == {"DONE": 2500}, 60, site.describe)
    assert site.record.runs() == dict.fromkeys(ids, 1)


@pytest.mark.slow
def test_an_idle_worker_leaves_the_server_alone(site: Site) -> None:
    site.worker("prefork", 2)
    assert site.app.tasks["app.add"].delay(1, 1).get(timeout=10) == 2
    # The first round of upkeep comes within half a minute, the next one later and later; and an idle backend takes
    # up to ten seconds to report its statistics.
    settled = time.monotonic() + 42
    wait_until(lambda: time.monotonic() > settled, 43)
    with closing(site.database.connect()) as connection, connection.cursor() as cursor:
        before = statements_and_wal(cursor)
        until = time.monotonic() + 20
        wait_until(lambda: time.monotonic() > until, 21)
        after = statements_and_wal(cursor)
    assert after[0] - before[0] < 20
    assert after[1] - before[1] < 4096


def statements_and_wal(cursor: Any) -> tuple[int, int]:
    """What this database's sessions have done so far; the WAL of each session is known from PostgreSQL 18 on."""
    cursor.execute("select xact_commit + xact_rollback from pg_stat_database where datname = current_database()")
    statements = int(cursor.fetchone()[0])
    if cursor.connection.server_version < 180000:
        return statements, 0
    cursor.execute(
        "select sum(w.wal_bytes) from pg_stat_activity a, pg_stat_get_backend_wal(a.pid) w"
        " where a.datname = current_database() and a.backend_type = 'client backend'"
    )
    return statements, int(cursor.fetchone()[0])
