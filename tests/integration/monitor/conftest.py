"""An operator's desk: a database with jobs in it, and the command line on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from pgbroker import Job, JobQueue
from pgbroker.cli.main import pgbroker
from pgbroker.options import Options
from pgbroker.postgres.pool import pool_for
from pgbroker.queue.routing import routing_for

if TYPE_CHECKING:
    from ...conftest import Database

#: Named as the broker names a worker process.
WORKER = "web-1:4711:0123456789ab"


class Desk:
    """One database, seen by an operator."""

    worker = WORKER

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        self.directory = directory
        self.options = Options.from_url(database.url)
        self.jobs = JobQueue(self.options, poll_interval=30)
        pool_for(self.options).query("select 1")  # makes the schema
        (directory / "shop.py").write_text(
            f"from celery import Celery\napp = Celery('shop', broker={database.url!r})\n"
        )

    def run(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Run a statement of the test's own."""
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return cursor.fetchall() if cursor.description else []

    def call(self, *words: object, **conf: Any) -> Result:
        """Run a command in this process."""
        app = Celery("desk", set_as_current=False, broker=conf.pop("broker_url", self.database.url))
        app.conf.update(conf)
        context = CLIContext(app=app, no_color=True, workdir=None)
        done = CliRunner().invoke(pgbroker, [str(word) for word in words], obj=context)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    def celery(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command as a user does, in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "shop", "pgbroker", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(self.directory)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def put(self, queue: str, task: str = "shop.ship", **words: Any) -> int:
        """Publish a job."""
        job_id = self.jobs.enqueue(task, {"order": 7}, queue=queue, **words)
        assert job_id is not None
        return job_id

    def take(self, queue: str, worker: str = WORKER, **words: Any) -> Job:
        """Claim the next job."""
        job = self.jobs.claim(worker, queues=(queue,), **words)
        assert isinstance(job, Job)
        return job

    def bury(self, queue: str, error: str = "ValueError: no such order\nTraceback ...", **words: Any) -> int:
        """Make a dead letter."""
        job_id = self.put(queue, max_attempts=1, **words)
        assert self.take(queue).job_id == job_id
        assert self.jobs.fail(job_id, WORKER, error) == "DEAD"
        return job_id

    def attend(self, queue: str, worker: str = WORKER, seconds: float = 60) -> None:
        """Say that a Celery worker consumes from a queue."""
        call = routing_for(self.options.schema).attend(worker, [f"tag-{queue}"], [queue], [], seconds)
        pool_for(self.options).query(*call)

    def status(self, job_id: int) -> str | None:
        """Where a job stands."""
        job = self.jobs.get(job_id)
        return None if job is None else str(job.status)


@pytest.fixture(scope="module")
def desk(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk that the tests of a module share; each works on a queue of its own."""
    made = Desk(module_database, tmp_path_factory.mktemp("desk"))
    yield made
    made.jobs.close()


@pytest.fixture
def fresh_desk(database: Database, tmp_path: Path) -> Iterator[Desk]:
    """A desk of the test's own, for what concerns the whole database."""
    made = Desk(database, tmp_path)
    yield made
    made.jobs.close()


@pytest.fixture
def name() -> str:
    """A queue of the test's own."""
    return f"q-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    """Wait until a condition is true."""

    def wait(condition: Callable[[], object], seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            time.sleep(0.02)

    return wait
