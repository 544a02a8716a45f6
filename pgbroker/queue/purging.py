"""Emptying a queue without holding up anybody: in short transactions, so that claims and publishes go on in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgbroker.queue.routing import Routing

#: Jobs that end in one transaction, which takes some ten milliseconds.
PURGE_BATCH = 500


def purge_queue(query: Callable[..., list[tuple[Any, ...]]], routing: Routing, queue: str) -> int:
    """Take out what waits in a queue now. What is published meanwhile stays, and so does what a worker is claiming.

    Args:
        query: Runs one statement with its arguments and returns the rows.
        routing: The calls for the schema.
        queue: The queue.

    Returns:
        How many messages were taken out. If a statement fails, those of the batches before it stay out.
    """
    total: int = 0
    where: tuple[Any, ...] = (None, None, None, None)
    while True:
        purged, *where_next = query(*routing.purge_batch(queue, PURGE_BATCH, where))[0]
        total += purged
        where = tuple(where_next)
        if where[0] is None:
            return total
