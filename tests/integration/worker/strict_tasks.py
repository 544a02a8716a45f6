"""Tasks for the tests of ``strict_start``: they look at their own row, with a connection of their own, before all else.

A worker gets them by ``imports=["strict_tasks"]``; a test calls :func:`register` on its own application.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
from app import record
from celery import Celery, signals

from pgbroker.options import Options


def hold_file(record_path: str | os.PathLike[str], worker: str) -> Path:
    """While this file is there, the worker's main process waits before it gives a task to its pool."""
    return Path(f"{record_path}.hold.{worker}")


def _own_row(task: Any) -> tuple[str, bool] | None:
    words = dict(Options.from_url(os.environ["PGB_APP_URL"]).libpq)
    with closing(psycopg2.connect(**words)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select ack_mode::text, started_at is not null from pgbroker.jobs_live where job_id = %s",
            [task.request.delivery_info["job_id"]],
        )
        found: tuple[str, bool] | None = cursor.fetchone()
        return found


def register(app: Celery) -> Celery:
    """Add the tasks to an application."""

    @app.task(shared=False, bind=True, name="strict.early")
    def early(self: Any) -> str:
        record("start", task_id=self.request.id, row=_own_row(self))
        return "ran"

    @app.task(shared=False, bind=True, name="strict.late", acks_late=True)
    def late(self: Any) -> str:
        record("start", task_id=self.request.id, row=_own_row(self))
        return "ran"

    @app.task(shared=False, bind=True, name="strict.limited", time_limit=3)
    def limited(self: Any) -> str:
        record("start", task_id=self.request.id, row=_own_row(self))
        return "ran"

    @app.task(shared=False, bind=True, name="strict.soft", soft_time_limit=1)
    def soft(self: Any) -> str:
        record("start", task_id=self.request.id, row=_own_row(self))
        return "ran"

    @app.task(shared=False, bind=True, name="strict.kill")
    def kill(self: Any) -> None:
        record("start", task_id=self.request.id)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # the whole worker, as when the machine loses its power

    return app


if "PGB_APP_URL" in os.environ:
    register(sys.modules["app"].app)

    @signals.task_received.connect
    def _received(sender: Any, request: Any, **_: Any) -> None:
        hold = hold_file(os.environ["PGB_APP_RECORD"], sender.hostname.partition("@")[0])
        if request.name.startswith("strict.") and hold.exists():
            record("held", task_id=request.id)
            while hold.exists():
                time.sleep(0.01)

    @signals.task_prerun.connect
    def _prerun(task_id: str, **_: Any) -> None:
        record("signal prerun", task_id=task_id)

    @signals.task_failure.connect
    def _failed(task_id: str, exception: BaseException, **_: Any) -> None:
        record("signal failure", task_id=task_id, error=repr(exception))
