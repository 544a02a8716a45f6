"""Exchanges to which nothing is bound: an event sent there costs no statement."""

from __future__ import annotations


class UnboundExchanges:
    """What this process knows of exchanges without bindings.

    It knows something only while one of its connections listens for new bindings, so that a client that binds a
    queue sees the next event. ``generation`` tells whether a binding was made while somebody was looking.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._watchers = 0
        self._names: set[str] = set()

    def __contains__(self, exchange: str) -> bool:
        return exchange in self._names

    def note(self, exchange: str, generation: int) -> None:
        """Nothing was bound to this exchange; ``generation`` is from before the look."""
        if self._watchers > 0 and generation == self.generation:
            self._names.add(exchange)

    def forget(self) -> None:
        """A binding was made somewhere."""
        self.generation += 1
        self._names = set()

    def watch(self) -> None:
        """A connection has begun to listen for new bindings."""
        self._watchers += 1
        self.forget()

    def unwatch(self) -> None:
        """It has ceased."""
        self._watchers -= 1
        self.forget()
