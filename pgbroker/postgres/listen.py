"""LISTEN on a connection of its own, and waiting for a notification with a deadline.

Whoever waits first opens the listener, then looks whether there is something to do already, and only then waits:
what is committed before LISTEN has taken effect notifies nobody.

Source: PostgreSQL, "LISTEN" (a session sees notifications of transactions that commit after its LISTEN did).
"""

from __future__ import annotations

import select
import time
import uuid
from collections.abc import Iterable

from pgbroker.options import Options
from pgbroker.postgres import migrate
from pgbroker.postgres.connection import Session
from pgbroker.postgres.pool import is_alive


class Listener:
    """A session that listens to a channel of its own and to others. For one thread at a time.

    The session may run short statements too; notifications that come along with their answers are not lost. It is
    connected by the options' ``listen_url`` where there is one.

    Args:
        options: Which server.
        purpose: One word for ``application_name``.
    """

    def __init__(self, options: Options, purpose: str = "listener") -> None:
        self.session = Session(options.listen_options() or options, purpose)
        #: Channel that belongs to this listener alone; a new one for each connection.
        self.channel = ""
        self._heard: frozenset[str] = frozenset()

    def open(self, channels: Iterable[str] = ()) -> bool:
        """Connect unless connected, and listen to the own channel and to these, and no longer to any other.

        Returns:
            Whether anything was listened to anew, so that the caller must look for what came before.

        Raises:
            DatabaseUnreachable: No connection can be made, or it broke.
            SchemaError: The schema is missing or does not fit.
        """
        if not is_alive(self.session):
            self.session.close()
            self.session.connect()
            self._heard = frozenset()
            self.channel = f"pgbw_{uuid.uuid4().hex}"
            migrate.ensure_schema(self.session)
        wanted = frozenset({self.channel, *channels})
        new, old = wanted - self._heard, self._heard - wanted
        statements = [f'listen "{name}"' for name in sorted(new)] + [f'unlisten "{name}"' for name in sorted(old)]
        if statements:
            self.session.query("; ".join(statements))
            self._heard = wanted
        return bool(new)

    def wait(self, timeout: float) -> bool:
        """Wait for a notification.

        Args:
            timeout: At most so many seconds; 0 only looks.

        Returns:
            Whether one has arrived since the last call.

        Raises:
            ConnectionLost: The connection broke; open the listener again.
        """
        deadline = time.monotonic() + timeout
        while not self.session.take_notifications():
            left = max(0.0, deadline - time.monotonic())
            poller = select.poll()
            poller.register(self.session.fileno(), select.POLLIN)
            if poller.poll(left * 1000):
                self.session.pump()
            elif left <= 0:
                return False
        return True

    def close(self) -> None:
        """Close the connection; :meth:`open` makes another."""
        self.session.close()
