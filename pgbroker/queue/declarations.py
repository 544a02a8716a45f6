"""What a process has declared that goes away when nobody attends to it, so that it can be declared again.

A transient queue of a process that was silent for too long (a suspended machine, SIGSTOP, a server that was restarted
after a crash) is swept away with its bindings. AMQP's connections would break over that; here the process goes on and
would hear of nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgbroker.postgres import native
from pgbroker.queue.store import Call

#: A client may make a reply queue for each request: the oldest are forgotten beyond so many.
REMEMBERED_MAX = 1000


class Declarations:
    """Of one process. All methods may be called from any thread or greenlet."""

    def __init__(self) -> None:
        self._lock = native.new_lock()
        self._exchanges: dict[str, Call] = {}
        self._queues: dict[str, Call] = {}
        self._auto_delete: set[str] = set()
        self._bindings: dict[str, dict[Call, str]] = {}

    def exchange(self, name: str, call: Call) -> None:
        """An exchange was declared by this statement."""
        with self._lock:
            _remember(self._exchanges, name, call)

    def queue(self, name: str, call: Call, *, auto_delete: bool) -> None:
        """A transient queue was declared by this statement; ``auto_delete``: it goes with its last consumer."""
        with self._lock:
            _remember(self._queues, name, call)
            (self._auto_delete.add if auto_delete else self._auto_delete.discard)(name)
            self._bindings.setdefault(name, {})
            for forgotten in self._bindings.keys() - self._queues.keys():
                del self._bindings[forgotten]
                self._auto_delete.discard(forgotten)

    def binding(self, queue: str, exchange: str, call: Call) -> None:
        """A queue was bound to an exchange by this statement; of no interest unless the queue is one of these."""
        with self._lock:
            if queue in self._queues:
                self._bindings[queue][call] = exchange

    def no_binding(self, queue: str, call: Call) -> None:
        """What this statement had bound was unbound."""
        with self._lock:
            self._bindings.get(queue, {}).pop(call, None)

    def no_consumer(self, name: str) -> None:
        """Nobody here consumes from the queue any more."""
        with self._lock:
            if name in self._auto_delete:
                self._forget(name)

    def no_queue(self, name: str) -> None:
        """A queue was deleted."""
        with self._lock:
            self._forget(name)

    def missing(self, in_use: Iterable[str], found: Mapping[str, int]) -> dict[str, list[Call]]:
        """The statements that declare and bind again what has gone.

        Args:
            in_use: Queues that this process consumes from or keeps.
            found: Transient queues that are there, and how many bindings each has.

        Returns:
            For each queue that has gone or has lost bindings, the statements in their order.
        """
        with self._lock:
            return {
                name: self._restoring(name)
                for name in sorted(in_use)
                if name in self._queues and found.get(name, -1) < len(self._bindings[name])
            }

    def _forget(self, name: str) -> None:
        self._queues.pop(name, None)
        self._bindings.pop(name, None)
        self._auto_delete.discard(name)

    def _restoring(self, queue: str) -> list[Call]:
        bindings = self._bindings[queue]
        exchanges = dict.fromkeys(self._exchanges[name] for name in bindings.values() if name in self._exchanges)
        return [*exchanges, self._queues[queue], *bindings]


def _remember(calls: dict[str, Call], name: str, call: Call) -> None:
    calls.pop(name, None)
    calls[name] = call
    if len(calls) > REMEMBERED_MAX:
        del calls[next(iter(calls))]
