"""What kombu calls a connection: a light handle, since sessions are lent by the process or belong to the pump."""

from __future__ import annotations

import contextlib
from typing import Any

from pgbroker import errors
from pgbroker.transport.channel import Channel
from pgbroker.transport.consumers import Subscription
from pgbroker.transport.process import Process
from pgbroker.transport.pump import Pump


class Link:
    """One kombu connection.

    Attributes:
        client: The ``kombu.Connection`` that owns this.
        channels: Its open channels.
        exclusive_queues: Those that were declared on it; they go with it.
    """

    def __init__(self, client: Any, process: Process) -> None:
        self.client = client
        self.process = process
        self.options = process.options
        self.channels: set[Channel] = set()
        self.exclusive_queues: set[str] = set()
        self.is_closed = False
        self._pump: Pump | None = None

    @property
    def pump(self) -> Pump:
        """The consuming side, made when it is first needed."""
        if self._pump is None:
            process = self.process
            self._pump = Pump(self.options, process.keeper, process.claiming, process.unbound_exchanges, process.events)
        return self._pump

    def subscriptions(self) -> list[Subscription]:
        """The consumers of this connection."""
        return list(self._pump.consumers) if self._pump is not None else []

    @property
    def is_driven(self) -> bool:
        """Whether an event loop, or a drain under way, will say soon what there is to say."""
        return self._pump is not None and self._pump.is_driven

    @property
    def connected(self) -> bool:
        """Whether this can be used, as far as is known without asking the server."""
        return not self.is_closed

    def channel(self) -> Channel:
        """Open a channel."""
        channel = Channel(self)
        self.channels.add(channel)
        return channel

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for a message; see :meth:`Pump.drain`."""
        self.pump.drain(timeout)

    def close(self, *, is_lost: bool = False) -> None:
        """Close the channels and the pump. ``is_lost``: without a word to the server."""
        if self.is_closed:
            return
        if not is_lost:
            with contextlib.suppress(errors.PgBrokerError):  # then the leases of what is held run out
                for channel in list(self.channels):
                    channel.give_back()
        if self._pump is not None:
            self._pump.close(is_lost=is_lost)
        self.is_closed = True
        for channel in list(self.channels):
            channel.close()
        self._drop_exclusive(is_lost=is_lost)

    def _drop_exclusive(self, *, is_lost: bool) -> None:
        """Exclusive queues end with their connection; after a loss its successor may have declared them again."""
        if not self.exclusive_queues:
            return
        process, queues = self.process, sorted(self.exclusive_queues)
        process.keeper.kept_queues -= self.exclusive_queues
        for queue in queues:
            process.keeper.declarations.no_queue(queue)
        call = process.routing.drop_exclusive(process.ledger.worker, queues)
        if is_lost:
            return
        if process.is_interrupted():
            process.ledger.say(call)
            return
        with contextlib.suppress(errors.PgBrokerError):  # then they go when nobody says any more that they are in use
            process.pool.query(*call)
