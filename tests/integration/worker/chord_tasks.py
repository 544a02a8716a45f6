"""Tasks for the tests of chords. A worker gets them by ``imports=["chord_tasks"]``; a test calls :func:`register`."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

from app import record
from celery import Celery, group
from celery.exceptions import Ignore, Reject

#: Statements of members of a chord; a worker that is told so dies after one of them.
DANGEROUS = ("return_chord_part(", "finish_chord(", "end_with_result(", "publish(", "dispatch(", "commit")


def register(app: Celery) -> Celery:
    """Add the tasks to an application."""

    @app.task(shared=False, name="chords.number", acks_late=True)
    def number(value: Any, seconds: float = 0) -> Any:
        time.sleep(seconds)
        return value

    @app.task(shared=False, name="chords.early")
    def early(value: Any, seconds: float) -> Any:
        record("start", value=value)
        time.sleep(seconds)
        return value

    @app.task(shared=False, name="chords.total", bind=True, acks_late=True)
    def total(self: Any, values: list[Any], tag: Any = None) -> Any:
        record("body", task_id=self.request.id, values=values, tag=tag)
        return values

    @app.task(shared=False, name="chords.ignored", ignore_result=True)
    def ignored(value: Any) -> Any:
        return value

    @app.task(shared=False, name="chords.fail")
    def fail(value: Any) -> None:
        raise ValueError(f"meant to fail {value}")

    @app.task(shared=False, name="chords.reject", acks_late=True)
    def reject() -> None:
        raise Reject("not wanted", requeue=False)

    @app.task(shared=False, name="chords.again", bind=True, max_retries=3)
    def again(self: Any, value: Any) -> Any:
        if self.request.retries < 2:
            raise self.retry(countdown=0.05)
        return value

    @app.task(shared=False, name="chords.replaced", bind=True)
    def replaced(self: Any, value: int, many: bool = False) -> Any:
        return self.replace(group(number.s(value + n) for n in range(3)) if many else number.s(value * 10))

    @app.task(shared=False, name="chords.adding", bind=True)
    def adding(self: Any, value: int) -> int:
        self.add_to_chord(number.s(value + 1))
        return value

    @app.task(shared=False, name="chords.on_error")
    def on_error(request: Any, exc: BaseException, traceback: Any) -> None:
        record("errback", task_id=request.id, error=f"{type(exc).__name__}: {exc}")

    @app.task(shared=False, name="chords.silent")
    def silent() -> None:
        raise Ignore()

    return app


def _die_once_a_round(folder: str) -> None:
    """Kill this worker, pool and all, after a statement of a chord's member, if nobody has died in this round yet.

    The round is the name of the newest file in the folder; whoever renames it dies.
    """
    from pgbroker.postgres.connection import Session

    query = Session.query

    def deadly(self: Session, sql: str, args: Any = (), **more: Any) -> Any:
        rows = query(self, sql, args, **more)
        if any(word in sql for word in DANGEROUS) and random.random() < 0.25:
            for name in os.listdir(folder):
                if not name.endswith(".dead"):
                    try:
                        os.rename(f"{folder}/{name}", f"{folder}/{name}.dead")
                    except FileNotFoundError:
                        continue
                    record("dies", sql=sql)
                    os.killpg(os.getsid(0), signal.SIGKILL)
        return rows

    Session.query = deadly  # type: ignore[method-assign]


if "PGB_APP_URL" in os.environ:
    register(sys.modules["app"].app)
    if os.environ.get("PGB_CHORD_ROUNDS"):
        _die_once_a_round(os.environ["PGB_CHORD_ROUNDS"])
