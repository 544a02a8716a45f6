"""The application whose workers are killed: tasks that say when they begin and when they end.

Started by ``celery -A chaos_app`` it is configured by the environment: ``CHAOS_URL`` (broker and result backend),
``CHAOS_DIARY`` (where tasks write) and ``CHAOS_OPTIONS`` (transport options as JSON).
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Any

import diary
from celery import Celery, signals


def make_app(url: str, options: dict[str, Any]) -> Celery:
    """The application on a broker; workers and driver make the same one."""
    app = Celery("chaos", broker=url, backend=url, task_cls="pgbroker:Task", set_as_current=False)
    app.conf.update(
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        worker_redirect_stdouts=False,
        result_expires=36_000,
    )

    def work(task: Any, seconds: float) -> None:
        """``run`` tells two runs of one task apart, also in one process."""
        about = {"task_id": task.request.id, "run": uuid.uuid4().hex}
        diary.write(os.environ["CHAOS_DIARY"], "start", **about)
        time.sleep(seconds)
        diary.write(os.environ["CHAOS_DIARY"], "end", **about)

    @app.task(shared=False, bind=True, name="chaos.early")
    def early(self: Any, seconds: float) -> None:
        work(self, seconds)

    @app.task(shared=False, bind=True, name="chaos.late", acks_late=True, reject_on_worker_lost=True)
    def late(self: Any, seconds: float) -> None:
        work(self, seconds)

    @app.task(shared=False, bind=True, name="chaos.late_once", acks_late=True)
    def late_once(self: Any, seconds: float) -> None:
        """Celery's default: the loss of its pool process is a failure like any other."""
        work(self, seconds)

    return app


if "CHAOS_URL" in os.environ:
    app = make_app(os.environ["CHAOS_URL"], json.loads(os.environ["CHAOS_OPTIONS"]))

    @signals.worker_ready.connect
    def _ready(sender: Any, **_: Any) -> None:
        diary.write(os.environ["CHAOS_DIARY"], "ready", hostname=sender.hostname)
