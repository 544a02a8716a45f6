"""How the result of a publish finds its way back through kombu, which throws it away, to whoever asked for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

from pgbroker.queue.routing import Dispatched
from pgbroker.queue.store import Published

_collecting: ContextVar[list[Published | Dispatched] | None] = ContextVar("pgbroker_receipts", default=None)


@contextlib.contextmanager
def collect() -> Iterator[list[Published | Dispatched]]:
    """Gather what became of the jobs that this thread or greenlet publishes inside the block."""
    found: list[Published | Dispatched] = []
    token = _collecting.set(found)
    try:
        yield found
    finally:
        _collecting.reset(token)


def hand_in(results: Iterable[Published | Dispatched]) -> None:
    """Report what became of a publish, if anybody asked."""
    found = _collecting.get()
    if found is not None:
        found.extend(results)
