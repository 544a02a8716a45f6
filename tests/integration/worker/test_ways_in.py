"""However a job comes in, the same worker runs it: psql, JobQueue, its asyncio form, Celery's own calls."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess

import pytest
from worker_site import Site, wait_until

from pgbroker import JobQueue, aio


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_one_worker_runs_what_comes_in_by_each_way(pool: str, site: Site) -> None:
    site.worker(pool, 2)
    add = site.app.tasks["app.add"]
    by_delay = add.delay(1, 1).id
    by_key = add.apply_async((2, 2), dedupe_key="only one").id
    with JobQueue(site.database.url) as queue:
        job_id = queue.enqueue("app.add", {"x": 3, "y": 3})
        assert job_id is not None
        by_queue = queue.get(job_id)

    async def enqueue() -> str:
        async with aio.JobQueue(site.database.url) as queue:
            job_id = await queue.enqueue("app.add", {"x": 4, "y": 4})
            job = await queue.get(job_id)
            assert job is not None
            return str(job.task_id)

    by_aio = asyncio.run(enqueue())
    by_sql = psql(site, "select pgbroker.enqueue('app.add', '{\"y\": 5}', '[5]')")
    assert by_queue is not None
    ids = {by_delay: 2, by_key: 4, str(by_queue.task_id): 6, by_aio: 8, by_sql: 10}
    for task_id, total in ids.items():
        assert site.app.AsyncResult(task_id).get(timeout=10) == total
    wait_until(lambda: site.statuses() == {"DONE": 5}, what=site.describe)
    assert site.record.runs() == dict.fromkeys(ids, 1)


def psql(site: Site, sql: str) -> str:
    """By psql itself where it is installed, else by a plain driver."""
    if shutil.which("psql") is None:
        return str(site.rows(sql)[0][0])
    dsn = site.database.dsn
    environment = {**os.environ, "PGPASSWORD": dsn.get("password", "")}
    command = [
        "psql",
        "-XAtq",
        "-h",
        dsn["host"],
        "-p",
        dsn.get("port", "5432"),
        "-U",
        dsn["user"],
        "-d",
        dsn["dbname"],
    ]
    done = subprocess.run(
        [*command, "-c", sql], env=environment, capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()
