"""Making a queue unless it is there, asked once per process and queue."""

from __future__ import annotations

from pgbroker.options import Options
from pgbroker.postgres.pool import SessionPool
from pgbroker.queue.routing import routing_for

#: How many declared queues a process remembers; beyond that it forgets all and declares anew, which is harmless.
DECLARED_MAX = 10_000

_declared: set[tuple[Options, str]] = set()


def declare_once(pool: SessionPool, queue: str) -> None:
    """Make the job queue unless it is there, in a transaction of its own.

    Raises:
        ValueError: The queue is transient, so that it holds no jobs.
    """
    options = pool.options
    if (options, queue) in _declared:
        return
    kind = pool.value(*routing_for(options.schema).declare_queue(queue))
    if kind != "job":
        raise ValueError(
            f"queue {queue!r} is transient (exclusive, auto-delete or x-expires) and holds no jobs; use another one"
        )
    if len(_declared) >= DECLARED_MAX:
        _declared.clear()
    _declared.add((options, queue))
