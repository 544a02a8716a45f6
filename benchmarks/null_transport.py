"""A kombu transport with no broker behind it: ``null://``, Celery's own ceiling.

Messages are made in the memory of the consuming process and acknowledgements are thrown away. Everything else is as
with a real asynchronous broker: the prefetch window counts unacknowledged messages, the event loop drives the
delivery, an acknowledgement makes room for the next message. A publish costs what kombu and Celery cost; the message
is dropped, and only the last one per routing key is kept as the template for :func:`load`.

Compare ``kombu.transport.pyamqp``: there one call of the loop reads what the socket holds. Here one call fills the
window.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kombu.message import Message
from kombu.transport import TRANSPORT_ALIASES, base

#: Messages given out in one go where no prefetch limit is set.
_UNLIMITED_BURST = 1000


class QueueDeclared(NamedTuple):
    """The answer to a queue declaration, as in AMQP."""

    queue: str
    message_count: int
    consumer_count: int


class _Backlog:
    """The waiting messages of one queue: ids of tasks that exist only when they are delivered."""

    def __init__(self) -> None:
        self.template: dict[str, Any] | None = None
        self.returned: deque[str] = deque()
        self._fresh: Iterator[str] = iter(())

    def load(self, ids: Iterable[str]) -> None:
        self._fresh = itertools.chain(self._fresh, ids)

    def take(self) -> str | None:
        if self.template is None:
            return None
        return self.returned.popleft() if self.returned else next(self._fresh, None)


_backlogs: dict[str, _Backlog] = {}


def _backlog(queue: str) -> _Backlog:
    return _backlogs.setdefault(queue, _Backlog())


def load(queue: str, ids: Iterable[str]) -> None:
    """Let a queue of this process deliver tasks with these ids.

    Args:
        queue: Name of the queue, which is also the routing key that a template was published with.
        ids: Task ids; each becomes a copy of the template with this id.

    Raises:
        LookupError: Nothing was published to the queue yet, so there is no template.
    """
    if _backlog(queue).template is None:
        raise LookupError(f"publish one message to {queue!r} first: it is the template of the others")
    _backlog(queue).load(ids)


class Channel(base.StdChannel):
    """A channel with a prefetch window and consumers."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self.no_ack_consumers: set[str] = set()
        self._consumers: dict[str, tuple[str, Callable[[Message], None]]] = {}
        self._unacked: dict[int, tuple[str, str]] = {}
        self._tags = itertools.count(1)
        self._window = 0
        connection.channels.append(self)

    # -- delivery

    def deliver(self) -> int:
        """Hand out what the window allows; returns how many messages that was."""
        # An eager pool acknowledges inside the callback: the bound keeps the loop in charge.
        burst = self._window - len(self._unacked) if self._window else _UNLIMITED_BURST
        delivered = 0
        for tag, (queue, callback) in tuple(self._consumers.items()):
            backlog = _backlog(queue)
            while delivered < burst and (identity := backlog.take()) is not None:
                delivered += 1
                callback(self._message(backlog.template or {}, identity, queue, tag))
        return delivered

    def _message(self, template: dict[str, Any], identity: str, queue: str, consumer_tag: str) -> Message:
        tag = next(self._tags)
        if consumer_tag not in self.no_ack_consumers:
            self._unacked[tag] = (queue, identity)
        return Message(
            body=template["body"],
            channel=self,
            delivery_tag=tag,  # type: ignore[arg-type]  # any value, as in AMQP
            content_type=template["content_type"],
            content_encoding=template["content_encoding"],
            headers={**template["headers"], "id": identity, "root_id": identity},
            properties={**template["properties"], "correlation_id": identity},
            delivery_info={
                "consumer_tag": consumer_tag,
                "delivery_tag": tag,
                "redelivered": False,
                "exchange": template["exchange"],
                "routing_key": queue,
            },
        )

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, a_global: bool = False, **_: Any) -> None:
        self._window = prefetch_count

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        self._unacked.pop(delivery_tag, None)
        self._room()

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        held = self._unacked.pop(delivery_tag, None)
        if requeue and held:
            _backlog(held[0]).returned.appendleft(held[1])
        self._room()

    def basic_consume(
        self, queue: str, no_ack: bool = False, callback: Any = None, consumer_tag: str = "", **_: Any
    ) -> str:
        if no_ack:
            self.no_ack_consumers.add(consumer_tag)
        self._consumers[consumer_tag] = (queue, callback)
        if self.connection is not None:
            self.connection.interrupt()
        return consumer_tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        self._consumers.pop(consumer_tag, None)
        self.no_ack_consumers.discard(consumer_tag)

    def _room(self) -> None:
        if self.connection is not None:
            self.connection.room()

    # -- publishing

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {
            "body": body,
            "content_type": content_type,
            "content_encoding": content_encoding,
            "headers": headers or {},
            "properties": {**(properties or {}), "priority": priority},
        }

    def basic_publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **_: Any) -> None:
        message["exchange"] = exchange
        _backlog(routing_key).template = message

    # -- topology: everything is granted, nothing is kept

    def exchange_declare(self, *args: Any, **kwargs: Any) -> None: ...

    def exchange_delete(self, *args: Any, **kwargs: Any) -> None: ...

    def queue_declare(self, queue: str = "", **_: Any) -> QueueDeclared:
        return QueueDeclared(queue, 0, 0)

    def queue_bind(self, *args: Any, **kwargs: Any) -> None: ...

    def queue_unbind(self, *args: Any, **kwargs: Any) -> None: ...

    def queue_delete(self, queue: str = "", **_: Any) -> int:
        _backlogs.pop(queue, None)
        return 0

    def queue_purge(self, queue: str = "", **_: Any) -> int:
        return 0

    def flow(self, active: bool = True) -> None: ...

    def close(self) -> None:
        if self.connection is not None:
            self.connection.channels.remove(self)
            self.connection = None


class Connection:
    """Ties channels to the event loop."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.channels: list[Channel] = []
        self._loop: Any = None
        self._thread = threading.get_ident()
        self._requested = False
        self._delivering = False
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def attach(self, loop: Any) -> None:
        """Let an event loop drive the delivery."""
        self._loop = loop
        loop.add_reader(self.reader, self._on_readable)

    def detach(self, loop: Any) -> None:
        """Undo :meth:`attach`."""
        self._loop = None
        loop.remove_reader(self.reader)

    def room(self) -> None:
        """Deliver soon, because an acknowledgement made room for it.

        The loop runs what is called soon first, then lets the pool ask for its pipes, then sleeps in ``poll``. So a
        call is enough if the acknowledgement came out of ``poll``; in all other places the loop might sleep over it.
        """
        if self._loop is not None and not self._requested:
            self._requested = True
            self._loop.call_soon(self.deliver)
        if self._delivering or threading.get_ident() != self._thread:
            self.interrupt()

    def interrupt(self) -> None:
        """End the sleep of whoever waits for messages."""
        try:
            self._writer.send(b"\0")
        except OSError:
            pass  # full: it will wake all the same; closed: nobody waits

    def deliver(self) -> int:
        """Deliver on all channels; returns how many messages that was."""
        self._requested = False
        self._delivering = True
        try:
            return sum(channel.deliver() for channel in tuple(self.channels))
        finally:
            self._delivering = False

    def _on_readable(self) -> None:
        try:
            self.reader.recv(4096)
        except OSError:
            return
        self.deliver()

    def drain_events(self, timeout: float | None = None) -> None:
        """Deliver for a consumer without event loop.

        Raises:
            socket.timeout: Nothing came in time.
        """
        if not self.deliver():
            self.reader.settimeout(timeout)
            try:
                self.reader.recv(4096)
            except BlockingIOError:
                raise TimeoutError from None
            finally:
                self.reader.setblocking(False)
            self.deliver()

    def close(self) -> None:
        """End the connection with its channels."""
        for channel in tuple(self.channels):
            channel.close()
        self.reader.close()
        self._writer.close()


class Transport(base.Transport):
    """The transport of ``null://``."""

    driver_type = "null"
    driver_name = "null"
    implements = base.Transport.implements.extend(asynchronous=True)

    def establish_connection(self) -> Connection:
        return Connection(self.client)

    def create_channel(self, connection: Connection) -> Channel:
        return Channel(connection)

    def close_connection(self, connection: Connection) -> None:
        connection.close()

    def drain_events(self, connection: Connection, **kwargs: Any) -> None:
        connection.drain_events(**kwargs)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.attach(loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.detach(loop)


def register() -> None:
    """Enter ``null://`` into kombu's table of transports; may be called any number of times."""
    TRANSPORT_ALIASES["null"] = "benchmarks.null_transport:Transport"
