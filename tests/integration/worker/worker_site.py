"""Real workers as processes of their own, and what they wrote down about themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from app import make_app
from celery import Celery

from pgbroker.postgres import pool
from pgbroker.transport.process import all_processes

HERE = Path(__file__).parent
POOLS = ("prefork", "threads", "solo", "gevent")

#: The same for tests that take their time: the first pool stands for all where slow tests are left out.
PREFORK_FIRST = ("prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in POOLS[1:]))

#: What no worker may log, whatever a test does to it.
FORBIDDEN = ("error in the lease thread", "UnboundLocalError", "Unrecoverable error")


def wait_until(condition: Callable[[], object], seconds: float = 15, what: str | Callable[[], object] = "") -> None:
    """Wait for a condition; fail with ``what`` if it has not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s: {what() if callable(what) else what or condition}")
        time.sleep(0.02)


def stop_sharing() -> None:
    """End what this process keeps for the brokers that it used: the database is about to go away."""
    for process in all_processes():
        process.keeper.stop()
    pool.close_all()


class Record:
    """The file that tasks write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def events(self, event: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # a line may be half written
        return [
            entry
            for entry in map(json.loads, lines)
            if event in (None, entry["event"]) and all(entry.get(k) == v for k, v in fields.items())
        ]

    def runs(self) -> Counter[str]:
        """How often each task began."""
        return Counter(entry["task_id"] for entry in self.events("start"))

    def count(self, event: str, **fields: Any) -> int:
        return len(self.events(event, **fields))


class Worker:
    """One ``celery worker``, leader of a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, name: str, record: Record) -> None:
        self.process, self.log, self.name, self.record = process, log, name, record
        self.may_fail = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self, seconds: float = 30) -> None:
        def is_ready() -> bool:
            if self.process.poll() is not None:
                pytest.fail(f"worker {self.name} ended with {self.process.returncode}:\n{self.output()}")
            return any(e["hostname"].startswith(f"{self.name}@") for e in self.record.events("ready"))

        wait_until(is_ready, seconds, self.output)

    def terminate(self) -> None:
        """Ask for a warm shutdown."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the whole session without a word, pool processes included."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)

    def wait(self, seconds: float = 20) -> int:
        """Wait for its end; a worker that hangs says where."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)  # Celery logs the stack of every thread
            since = time.monotonic()
            wait_until(lambda: time.monotonic() > since + 1)
            pytest.fail(f"worker {self.name} has not ended within {seconds:g} s:\n{self.output()[-6000:]}")


class Site:
    """A database, the application on it, its workers and their record."""

    def __init__(self, database: Any, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.record = Record(folder / "record")
        self.app = make_app(database.url)
        self.workers: list[Worker] = []

    def make_app(self, **conf: Any) -> Celery:
        return make_app(self.database.url, **conf)

    def environment(self, url: str | None = None, **conf: Any) -> dict[str, str]:
        return {
            **os.environ,
            "PGB_APP_URL": url or self.database.url,
            "PGB_APP_RECORD": str(self.record.path),
            "PGB_APP_CONF": json.dumps(conf),
            "PYTHONUNBUFFERED": "1",
        }

    def worker(
        self,
        pool: str = "solo",
        concurrency: int = 1,
        *arguments: str,
        queues: str = "celery",
        url: str | None = None,
        wait: bool = True,
        options: dict[str, Any] | None = None,
        **conf: Any,
    ) -> Worker:
        """Start a worker. ``options`` are transport options, ``conf`` is Celery's configuration."""
        name = f"w{len(self.workers)}-{pool}"
        conf = {"broker_transport_options": options or {}, **conf}
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "app", "worker", "-P", pool, "-c", str(concurrency)]
        command += ["-n", f"{name}@%h", "-Q", queues, "-l", "info", *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=HERE,
                env=self.environment(url, **conf),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        worker = Worker(process, log, name, self.record)
        self.workers.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    def rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return cursor.fetchall() if cursor.description else []

    def job(self, task_id: str) -> dict[str, Any]:
        """The last row of a task in ``job_log``."""
        names = ("status", "attempts", "started_at", "last_error", "result_state", "priority", "worker")
        found = self.rows(
            f"select {', '.join(names)} from pgbroker.job_log where task_id = %s order by job_id desc limit 1", task_id
        )
        return dict(zip(names, found[0], strict=True)) if found else {}

    def statuses(self, task_ids: list[str] | None = None) -> Counter[str]:
        if task_ids is None:
            return Counter(dict(self.rows("select status::text, count(*) from pgbroker.job_log group by 1")))
        sql = "select status::text, count(*) from pgbroker.job_log where task_id = any (%s) group by 1"
        return Counter(dict(self.rows(sql, task_ids)))

    def wait_for(self, task_id: str, status: str, seconds: float = 15) -> dict[str, Any]:
        wait_until(lambda: self.job(task_id).get("status") == status, seconds, lambda: self.describe(task_id))
        return self.job(task_id)

    def describe(self, task_id: str = "") -> str:
        logs = "\n".join(f"--- {w.name}\n{w.output()[-3000:]}" for w in self.workers)
        return f"{self.job(task_id) if task_id else ''} {self.statuses()}\n{logs}"

    def cut_all(self) -> int:
        """Terminate every other backend of this database, and of no other."""
        sql = (
            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
        return int(self.rows(sql)[0][0])

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.app.close()
        stop_sharing()
        for worker in self.workers:
            said = [line for line in worker.output().splitlines() if any(word in line for word in FORBIDDEN)]
            assert worker.may_fail or not said, f"{worker.name}: {said}"
