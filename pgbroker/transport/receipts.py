"""How the result of a publish finds its way back through kombu, which throws it away, to whoever asked for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

from pgbroker.queue.routing import Dispatched
from pgbroker.queue.store import Published, storable


class _Collecting(NamedTuple):
    task_id: str
    is_expendable: bool
    found: list[Published | Dispatched]


_collecting: ContextVar[_Collecting | None] = ContextVar("pgbroker_receipts", default=None)


@contextlib.contextmanager
def collect(task_id: str, *, is_expendable: bool) -> Iterator[list[Published | Dispatched]]:
    """Gather what becomes of a task that this thread or greenlet publishes inside the block.

    Other tasks that are published on the way, by handlers of signals, are not gathered.

    Args:
        task_id: The task.
        is_expendable: Nobody will know that id if the publish is a duplicate, so it need not lead to the live job's
            result.
    """
    found: list[Published | Dispatched] = []
    token = _collecting.set(_Collecting(storable(str(task_id)), is_expendable, found))
    try:
        yield found
    finally:
        _collecting.reset(token)


def hand_in(task_id: str | None, results: Iterable[Published | Dispatched]) -> None:
    """Report what became of a publish, if anybody asked."""
    collecting = _collecting.get()
    if collecting is not None and collecting.task_id == task_id:
        collecting.found.extend(results)


def is_expendable(task_id: str | None) -> bool:
    """Whether whoever publishes under this task id will know a duplicate by the live job's instead."""
    collecting = _collecting.get()
    return collecting is not None and collecting.task_id == task_id and collecting.is_expendable
