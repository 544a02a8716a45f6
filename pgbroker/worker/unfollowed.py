"""What it means that Celery is done with a message before it has taken its task up.

``task_received``, with which a row begins to follow its task, comes only after a look at the message. Celery
acknowledges without it what was revoked or has expired, and (this must not pass for done) what it cannot decode; it
rejects what it does not know or cannot make sense of. It stores a result only for a task that it does not know; whoever
waits for one of the others would wait for ever, so their failure is stored here.

Source: ``celery.worker.consumer.Consumer.create_task_handler``, ``celery.worker.strategy.default`` (5.7).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from celery import states
from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.worker import state as worker_state

from pgbroker.transport.process import Process
from pgbroker.worker import chord_parts, requeued

logger = logging.getLogger(__name__)


def watch(consumer: Any, process: Process) -> None:
    """Judge the messages of a worker's consumer."""
    process.judge = judge = _Judge(consumer)
    consumer.on_decode_error = _burying(consumer.on_decode_error, process, judge)


class _Judge:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def meet(self, message: Any) -> None:
        """An operator who has requeued the job wins over a revoke that this worker was told of before."""
        requeued.forget_revoke(message)

    def state_on_ack(self, message: Any) -> str | None:
        headers = message.headers
        is_revoked = headers.get("id") in worker_state.revoked or any(
            stamp in worker_state.revoked_stamps for stamp in headers.get("stamped_headers") or ()
        )
        return states.REVOKED if is_revoked else None

    def reason_on_reject(self, message: Any) -> str:
        name = _task_name(message)
        if name is None:
            return "the message names no task"
        if name not in self._consumer.strategies:
            self._fail_chord(message, NotRegistered(name))
            return f"NotRegistered: worker {self._consumer.hostname} knows no task {name!r}"
        exc = sys.exception()  # Celery rejects in the handler of what went wrong
        if exc is None:
            return f"worker {self._consumer.hostname} refused the message"
        self.tell(message, exc)
        return f"{type(exc).__name__}: {exc}"

    def _fail_chord(self, message: Any, exc: Exception) -> None:
        """Celery stores the failure of a task that it does not know, but looks for no chord in the body."""

        def read_request() -> Context:
            _, _, embed = message.payload
            return Context({**message.headers, "chord": (embed or {}).get("chord")})

        if message.headers.get("group") is not None:
            backend = self._consumer.app.backend
            chord_parts.fail(backend, _task_name(message), _field(message, "id"), exc, read_request)

    def tell(self, message: Any, exc: BaseException) -> None:
        """Tell the result backend that a task has failed of which only headers can be read, so no chord or errback."""
        name, task_id = _task_name(message), _field(message, "id")
        task = self._consumer.app.tasks.get(name)
        ignores = message.headers.get("ignore_result")
        if ignores is None:
            ignores = task is not None and task.ignore_result
        if ignores or not isinstance(task_id, str):
            return
        properties = message.properties
        request = Context(
            {
                **message.headers,
                "id": task_id,
                "reply_to": properties.get("reply_to"),
                "correlation_id": properties.get("correlation_id"),
            }
        )
        try:
            (task or self._consumer.app).backend.mark_as_failure(task_id, exc, request=request)
        except Exception:
            logger.exception("could not tell the result backend that task %s[%s] has failed: %r", name, task_id, exc)


def _task_name(message: Any) -> str | None:
    name = _field(message, "task")
    return name if isinstance(name, str) else None


def _field(message: Any, name: str) -> Any:
    """A field of protocol 2 (in the headers) or 1 (in the body, which Celery has decoded by then)."""
    value = message.headers.get(name)
    if value is None and isinstance(message._decoded_cache, dict):
        value = message._decoded_cache.get(name)
    return value


def _burying(on_decode_error: Callable[..., Any], process: Process, judge: _Judge) -> Callable[..., Any]:
    def on_undecodable(message: Any, exc: Exception) -> Any:
        judge.tell(message, exc)
        process.ledger.bury(message.delivery_tag, f"the message cannot be decoded: {type(exc).__name__}: {exc}")
        return on_decode_error(message, exc)

    return on_undecodable
