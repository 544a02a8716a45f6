"""Tasks that end in every way there is, each acknowledged early (``state.early.fail``) and late (``state.late.fail``).

A worker gets them by ``imports=["state_tasks"]``; a test calls :func:`register` on its own application.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from app import record
from celery import Celery, chain, group
from celery.exceptions import Ignore, Reject

from pgbroker import Task

MODES = ("early", "late")

#: Seconds after which a time limit ends a task that would sleep on.
LIMIT_SECONDS = 0.5


def begin(task: Any) -> int:
    """Write down that a task runs. Returns how often its job was claimed."""
    attempts = int(task.request.delivery_info["attempts"])
    record("start", task_id=task.request.id, name=task.name, attempts=attempts, retries=task.request.retries)
    return attempts


def register(app: Celery) -> Celery:
    """Add the tasks to an application."""
    for mode in MODES:
        _register_ends(app, mode)
        _register_losses(app, mode)
    return app


def _register_ends(app: Celery, mode: str) -> None:
    def define(name: str, **options: Any) -> Any:
        return app.task(
            shared=False, bind=True, base=Task, name=f"state.{mode}.{name}", acks_late=mode == "late", **options
        )

    @define("succeed")
    def succeed(self: Any) -> str:
        begin(self)
        return "done"

    @define("sleep")
    def sleep(self: Any, seconds: float) -> str:
        begin(self)
        time.sleep(seconds)
        record("end", task_id=self.request.id)
        return "done"

    @define("fail")
    def fail(self: Any) -> None:
        begin(self)
        raise ValueError("no such luck")

    @define("fail_unacked", acks_on_failure_or_timeout=False)
    def fail_unacked(self: Any) -> None:
        begin(self)
        raise ValueError("no such luck")

    @define("expected", throws=(KeyError,))
    def expected(self: Any) -> None:
        begin(self)
        raise KeyError("as usual")

    @define("undead", dead_letter=False)
    def undead(self: Any) -> None:
        begin(self)
        raise ValueError("nobody minds")

    @define("retry", max_retries=1)
    def retry(self: Any) -> str:
        begin(self)
        if not self.request.retries:
            raise self.retry(countdown=0)
        return "done"

    @define("retry_in_vain", max_retries=1)
    def retry_in_vain(self: Any) -> None:
        begin(self)
        raise self.retry(countdown=0, exc=ValueError("no such luck"))

    @define("replace_by_task")
    def replace_by_task(self: Any) -> None:
        begin(self)
        self.replace(succeed.si())

    @define("replace_by_chain")
    def replace_by_chain(self: Any) -> None:
        begin(self)
        self.replace(chain(succeed.si(), succeed.si()))

    @define("replace_by_group")
    def replace_by_group(self: Any) -> None:
        begin(self)
        self.replace(group(succeed.si(), succeed.si()))

    @define("ignore")
    def ignore(self: Any) -> None:
        begin(self)
        raise Ignore()

    @define("reject")
    def reject(self: Any) -> None:
        begin(self)
        raise Reject("not for me")

    @define("reject_once")
    def reject_once(self: Any) -> str:
        if begin(self) == 1:
            raise Reject("not now", requeue=True)
        return "done"

    @define("reject_always")
    def reject_always(self: Any) -> None:
        begin(self)
        raise Reject("never", requeue=True)

    @define("exit")
    def exit_(self: Any) -> None:
        begin(self)
        sys.exit(3)

    @define("limited", rate_limit="1/s")
    def limited(self: Any) -> str:
        begin(self)
        return "done"

    limits: dict[str, dict[str, Any]] = {
        "soft": {"soft_time_limit": LIMIT_SECONDS},
        "soft_unacked": {"soft_time_limit": LIMIT_SECONDS, "acks_on_failure_or_timeout": False},
        "hard": {"time_limit": LIMIT_SECONDS},
        "hard_undead": {"time_limit": LIMIT_SECONDS, "dead_letter": False},
        "hard_unacked": {"time_limit": LIMIT_SECONDS, "acks_on_failure_or_timeout": False},
    }
    for name, options in limits.items():

        @define(name, **options)
        def over_limit(self: Any, times: int = 99) -> str:
            """Run for too long, the first ``times`` times."""
            if begin(self) <= times:
                time.sleep(30)
            return "done"


def _die_afterwards(*_: Any) -> None:
    """The result has been stored by then."""
    os.kill(os.getpid(), signal.SIGKILL)


def _register_losses(app: Celery, mode: str) -> None:
    losses: dict[str, dict[str, Any]] = {
        "die": {},
        "die_rejected": {"reject_on_worker_lost": True},
        "die_retried": {"retry_on_worker_lost": True, "max_retries": 1, "default_retry_delay": 0},
        "die_afterwards": {"reject_on_worker_lost": True, "on_success": _die_afterwards},
    }
    for name, options in losses.items():

        @app.task(
            shared=False,
            bind=True,
            base=Task,
            name=f"state.{mode}.{name}",
            acks_late=mode == "late",
            **options,
        )
        def die(self: Any, times: int) -> str:
            """Kill the process that runs this, the first ``times`` times."""
            attempts = begin(self)
            if attempts + int(self.request.retries) <= times and not self.name.endswith("afterwards"):
                time.sleep(LIMIT_SECONDS)  # until the start is on record
                os.kill(os.getpid(), signal.SIGKILL)
            return "done"

    @app.task(shared=False, bind=True, base=Task, name=f"state.{mode}.die_at_once", acks_late=mode == "late")
    def die_at_once(self: Any) -> None:
        """Kill the process, perhaps before its worker has read that the task began."""
        begin(self)
        os.kill(os.getpid(), signal.SIGKILL)


if "PGB_APP_URL" in os.environ:
    register(sys.modules["app"].app)
