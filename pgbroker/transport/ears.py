"""What a consuming connection listens to: its own channel, those that transactions use, and new bindings."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from pgbroker.options import Options
from pgbroker.postgres.connection import Session
from pgbroker.queue.routing import Routing
from pgbroker.queue.store import Store
from pgbroker.transport.unbound import UnboundExchanges


class Ears:
    """LISTEN on the connection itself, or on one of its own where ``listen_url`` names it.

    Args:
        options: The broker.
        session: The connection.
        store: Calls of the queue.
        routing: Calls of exchanges and bindings.
        unbound: What the process knows of exchanges without bindings; it is told of new ones.
    """

    def __init__(
        self, options: Options, session: Session, store: Store, routing: Routing, unbound: UnboundExchanges
    ) -> None:
        self.is_open = options.notify
        listen_options = options.listen_options()
        self.listener = Session(listen_options, "listen") if listen_options and options.notify else None
        #: The channel on which publishers wake this connection alone.
        self.own_channel = f"pgbw_{secrets.token_hex(12)}"
        self._session, self._store, self._routing, self._unbound = session, store, routing, unbound
        self._listening: set[str] = set()
        self._topology_channel = ""
        self._is_watching = False

    def forget(self) -> None:
        """The connection is a new one."""
        self._listening.clear()

    def listen(self, queues: Iterable[str]) -> None:
        """Listen for these queues too; before the next claim, never after it."""
        if not self.is_open:
            return
        names = {row[0] for row in self._session.query(*self._store.queue_channels(list(queues)))}
        self._topology_channel = self._session.query(*self._routing.topology_channel())[0][0]
        new = ({self.own_channel, self._topology_channel} | names) - self._listening
        if new:
            session = self.listener or self._session
            session.query("; ".join(f'listen "{name}"' for name in sorted(new)))
            self._listening |= new
        if not self._is_watching:
            self._is_watching = True
            self._unbound.watch()

    def take(self) -> set[str]:
        """The channels that were notified since the last call, but for that of new bindings, which is dealt with."""
        channels = set(self._session.take_notifications())
        if self.listener is not None and self.listener.is_open:
            channels.update(self.listener.take_notifications())
        if self._topology_channel in channels:
            self._unbound.forget()
        return channels - {self._topology_channel}

    def close(self) -> None:
        """Listen no more."""
        if self._is_watching:
            self._unbound.unwatch()
        if self.listener is not None:
            self.listener.close()
