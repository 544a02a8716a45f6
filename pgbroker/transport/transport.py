"""The kombu transport: how kombu and Celery meet the broker."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from kombu.exceptions import ChannelError, ConnectionError
from kombu.transport import base

from pgbroker import errors
from pgbroker.transport import client_url, failover, topology
from pgbroker.transport.channel import Channel
from pgbroker.transport.link import Link
from pgbroker.transport.process import process_for

failover.install()


class Management(base.Management):
    """What ``celery list bindings`` asks."""

    def get_bindings(self) -> list[dict[str, Any]]:
        """All bindings: source, destination, routing key, arguments."""
        client: Any = self.transport.client
        with client.channel() as channel:
            found: list[dict[str, Any]] = channel.get_bindings()
            return found


class Transport(base.Transport):
    """``pgbroker://``, ``pgbroker+postgresql://`` and ``pgbroker+embedded://``."""

    Management = Management

    #: We need the whole URL: several hosts and sockets are beyond kombu's own parser.
    can_parse_url = True

    driver_type = "pgbroker"
    driver_name = "psycopg2"

    connection_errors = (ConnectionError, errors.DatabaseUnreachable, ConnectionResetError, BrokenPipeError)
    recoverable_connection_errors = connection_errors
    channel_errors = (
        ChannelError,
        errors.DatabaseError,
        errors.QueueNotFound,
        errors.ExchangeNotFound,
        errors.PreconditionFailed,
        errors.ResourceLocked,
    )
    recoverable_channel_errors: tuple[type[BaseException], ...] = ()

    implements = base.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=topology.EXCHANGE_TYPES,
        heartbeats=False,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.options = client_url.options_of(client)

    def driver_version(self) -> str:
        """The version of psycopg2."""
        return version("psycopg2-binary")

    def establish_connection(self) -> Link:
        """Check that the server answers and the schema fits, and return a connection.

        A worker goes on trying if the schema that it has been working with is missing; at its start that is an error.
        """
        process = process_for(self.options)
        try:
            with process.pool.lend():
                pass
        except errors.SchemaMissing as exc:
            if not process.reports_start:
                raise
            raise errors.DatabaseUnreachable(str(exc)) from None
        if "celery" in sys.modules:
            from pgbroker.worker import hooks

            hooks.install()
        return Link(self.client, process)

    def close_connection(self, connection: Link) -> None:
        """Give back what was not started and close."""
        connection.close()

    def _collect(self, connection: Link | None) -> None:
        """Drop a connection that is known to be broken; kombu calls this instead of closing it."""
        if connection is not None:
            connection.close(is_lost=True)

    def create_channel(self, connection: Link) -> Channel:
        """Open a channel."""
        return connection.channel()

    def close_channel(self, channel: Channel) -> None:
        """Close a channel."""
        channel.close()

    def drain_events(self, connection: Link, timeout: float | None = None, **_: Any) -> None:
        """Wait for a message; raises ``TimeoutError`` if none comes in time."""
        connection.drain_events(timeout)

    def verify_connection(self, connection: Link) -> bool:
        """Whether the connection can be used; called before every publish, so no round trip."""
        return connection.connected

    def register_with_event_loop(self, connection: Link, loop: Any) -> None:
        """Let Celery's event loop drive the consumers of the connection."""
        connection.pump.register(loop)

    def unregister_from_event_loop(self, connection: Link, loop: Any) -> None:
        """Nothing: kombu never calls this, closing the connection takes it out of the loop."""

    def qos_semantics_matches_spec(self, connection: Link) -> bool:
        """The prefetch window is that of a channel, as AMQP has it."""
        return True

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL without its password."""
        return client_url.as_uri(self.client, uri, include_password, mask)
