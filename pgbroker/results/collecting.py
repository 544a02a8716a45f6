"""Publishes that are held back, to be sent in a transaction of ours.

A chord's body is published through Celery and kombu, which declare queues and send events on the way. Only when all
that is done, the statements that store its messages run together with the one that ends the chord, so no connection
is held meanwhile and the transaction is short.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

from pgbroker.options import Options
from pgbroker.postgres.pool import SessionPool
from pgbroker.queue import joined
from pgbroker.queue.routing import Dispatched
from pgbroker.queue.store import Call, Published


class _Collecting(joined.Block):
    def __init__(self, options: Options) -> None:
        super().__init__(())
        self._options = options
        self.calls: list[Call] = []

    def transaction(self, pool: SessionPool) -> joined.JoinedTransaction | None:
        """For the publishing channel this is the transaction; publishes elsewhere stay outside."""
        return cast(joined.JoinedTransaction, self) if pool.options == self._options else None

    def query(self, call: Call) -> list[tuple[Any, ...]]:
        """Note a statement. The answer is that of a message that went well."""
        self.calls.append(call)
        if "dispatch(" in call[0]:
            return [Dispatched(call[1][1], "job", 0, None, None)]
        return [Published(0)]


@contextlib.contextmanager
def collect(options: Options) -> Iterator[list[Call]]:
    """Gather the statements by which jobs are published into the database of ``options`` in the ``with`` block."""
    block = _Collecting(options)
    with joined.join(block):
        yield block.calls
