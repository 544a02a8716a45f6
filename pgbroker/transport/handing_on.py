"""A task that is retried, or replaced by a single task, hands its dedupe key on.

Celery takes headers and priority along, but no properties, where the key stands.
"""

from __future__ import annotations

from typing import Any


def is_handed_on(task_id: Any) -> bool:
    """Whether this is the id of the task that runs here and now, which publishes itself once more."""
    running = _running_request()
    return running is not None and task_id is not None and running.id == task_id


def with_key(headers: dict[str, Any] | None, properties: dict[str, Any] | None) -> dict[str, Any] | None:
    """The properties of a message to be published, with the key of the running task if that is handed on."""
    if not headers or "task" not in headers or (properties or {}).get("dedupe_key") is not None:
        return properties
    if not is_handed_on(headers.get("id")):
        return properties
    key = (getattr(_running_request(), "properties", None) or {}).get("dedupe_key")
    return properties if key is None else {**(properties or {}), "dedupe_key": key}


def _running_request() -> Any:
    # the transport needs Celery for nothing else, and nobody else publishes tasks
    from celery._state import get_current_worker_task

    task = get_current_worker_task()
    return None if task is None else task.request
