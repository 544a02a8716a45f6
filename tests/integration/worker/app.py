"""The application that the worker tests run: what its tasks do is written to a file that no broker touches.

Started by ``celery -A app`` it is configured by the environment: ``PGB_APP_URL`` (broker and result backend),
``PGB_APP_RECORD`` (the file) and ``PGB_APP_CONF`` (Celery's settings as JSON).
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery, signals

#: Counts how often :func:`fail` and :func:`retry` have run in this process; nothing else is kept between tasks.
RETRIES = 2


def record(event: str, **fields: Any) -> None:
    """Append one line to the file of this run: one write to an O_APPEND descriptor, so lines never mix."""
    line = json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **fields}) + "\n"
    descriptor = os.open(os.environ["PGB_APP_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def make_app(url: str, **conf: Any) -> Celery:
    """The application on a broker; worker and test make the same one."""
    app = Celery("app", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        {
            "result_expires": 600,
            "broker_connection_retry_on_startup": True,
            "worker_redirect_stdouts": False,
            "task_publish_retry_policy": {"max_retries": 3, "interval_start": 0.1, "interval_step": 0.2},
            **conf,
        }
    )

    def ran(task: Any, event: str) -> None:
        info = {k: v for k, v in task.request.delivery_info.items() if isinstance(v, str | int | bool | None)}
        record(event, task_id=task.request.id, name=task.name, retries=task.request.retries, info=info)

    @app.task(shared=False, bind=True)
    def add(self: Any, x: int, y: int) -> int:
        ran(self, "start")
        return x + y

    @app.task(shared=False, bind=True)
    def sleep(self: Any, seconds: float) -> str:
        ran(self, "start")
        time.sleep(seconds)
        ran(self, "end")
        return "slept"

    @app.task(shared=False, bind=True, acks_late=True)
    def late_sleep(self: Any, seconds: float) -> str:
        ran(self, "start")
        time.sleep(seconds)
        ran(self, "end")
        return "slept"

    @app.task(shared=False, bind=True, acks_late=True)
    def burn(self: Any, seconds: float) -> None:
        """Pure Python: no switch of greenlets, and the GIL is asked for again at once."""
        ran(self, "start")
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            number += sum(range(1000))
        ran(self, "end")

    @app.task(shared=False, bind=True)
    def tell(self: Any, what: str, seconds: float) -> None:
        self.send_event(f"task-{what}")
        time.sleep(seconds)

    @app.task(shared=False, bind=True)
    def fail(self: Any, text: str) -> None:
        ran(self, "start")
        raise ValueError(text)

    @app.task(shared=False, bind=True, max_retries=RETRIES)
    def retry(self: Any) -> int:
        ran(self, "start")
        if self.request.retries < RETRIES:
            raise self.retry(countdown=0.1)
        return int(self.request.retries)

    @app.task(shared=False, bind=True, acks_late=True)
    def publish(self: Any, count: int) -> list[str]:
        ran(self, "start")
        return [add.delay(number, 1).id for number in range(count)]

    return app


if "PGB_APP_URL" in os.environ:
    app = make_app(os.environ["PGB_APP_URL"], **json.loads(os.environ.get("PGB_APP_CONF", "{}")))

    @signals.worker_ready.connect
    def _ready(sender: Any, **_: Any) -> None:
        record("ready", hostname=sender.hostname)
