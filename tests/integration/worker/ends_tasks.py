"""Tasks for the tests of ends that the broker makes: with chords and errbacks that write down what they learn.

A worker gets them by ``imports=["ends_tasks"]``; a test calls :func:`register` on its own application.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from app import record
from celery import Celery, signals


def register(app: Celery) -> Celery:
    """Add the tasks to an application."""

    @app.task(shared=False, name="ends.number")
    def number(value: int) -> int:
        record("number", value=value)
        return value

    @app.task(shared=False, name="ends.total")
    def total(values: list[int]) -> int:
        record("total", values=values)
        return sum(values)

    @app.task(shared=False, bind=True, name="ends.early")
    def early(self: Any, seconds: float) -> str:
        record("start", task_id=self.request.id)
        time.sleep(seconds)
        record("end", task_id=self.request.id)
        return "slept"

    @app.task(shared=False, bind=True, name="ends.late", acks_late=True)
    def late(self: Any, seconds: float) -> str:
        record("start", task_id=self.request.id)
        time.sleep(seconds)
        record("end", task_id=self.request.id)
        return "slept"

    @app.task(shared=False, bind=True, name="ends.again", max_retries=3)
    def again(self: Any, seconds: float) -> None:
        record("start", task_id=self.request.id)
        time.sleep(seconds)
        raise self.retry(countdown=0.5)

    @app.task(shared=False, name="ends.on_error")
    def on_error(request: Any, exc: BaseException, traceback: Any) -> None:
        record("errback", task_id=request.id, error=f"{type(exc).__name__}: {exc}")

    return app


if "PGB_APP_URL" in os.environ:
    register(sys.modules["app"].app)

    @signals.task_revoked.connect
    def _revoked(request: Any, expired: bool, **_: Any) -> None:
        record("signal revoked", task_id=request.id, expired=expired)

    @signals.task_failure.connect
    def _failed(task_id: str, exception: BaseException, args: Any, einfo: Any, **_: Any) -> None:
        record("signal failure", task_id=task_id, error=type(exception).__name__, args=list(args))
