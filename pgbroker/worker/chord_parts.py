"""What Celery tells no chord: members that end without a result backend hearing of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import states

logger = logging.getLogger(__name__)


def are_counted_once(backend: Any) -> bool:
    """Whether a result backend may be told of a member's end any number of times, as ours may."""
    return getattr(backend, "counts_parts_once", False)


def fail(backend: Any, name: Any, task_id: Any, exc: BaseException, read_request: Callable[[], Any]) -> None:
    """Tell the chord of a task, if it is a member of one, that it has failed.

    Args:
        backend: The result backend of the task.
        name: The task's, for the log.
        task_id: The task.
        exc: Why it failed.
        read_request: Makes Celery's request of the task; may fail, which is logged.
    """
    if not are_counted_once(backend):
        return
    try:
        request = read_request()
        if request.chord:
            backend.on_chord_part_return(request, states.FAILURE, exc)
    except Exception:
        logger.exception("could not tell the chord of task %s[%s] that its member has failed: %r", name, task_id, exc)
