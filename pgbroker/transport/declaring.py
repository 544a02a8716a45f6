"""The declaring side of a channel: exchanges, queues, bindings. Every method is a statement or two."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.transport import base
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined]
from kombu.utils.json import loads

from pgbroker import errors
from pgbroker.queue.purging import purge_queue
from pgbroker.queue.store import Call
from pgbroker.transport import topology

if TYPE_CHECKING:
    from pgbroker.transport.link import Link

#: ``queue_declare`` of a queue with more jobs than that says so many; a passive declare counts all.
CHEAP_COUNT_CAP = 1000


class DeclareOk(NamedTuple):
    """What ``queue_declare`` returns, as AMQP's ``queue.declare-ok``."""

    queue: str
    message_count: int
    consumer_count: int


class DeclaringChannel(base.StdChannel):
    """Declares, binds, counts, purges and deletes."""

    def __init__(self, link: Link) -> None:
        self.connection: Link | None = link
        self.options = link.options
        self.process = link.process
        self._job_queues: set[str] = set()

    def exchange_declare(
        self,
        exchange: str,
        type: str = "direct",
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Make an exchange unless it is there; ``passive``: only check that it is.

        Raises:
            ExchangeNotFound: Passive, and there is no such exchange.
            PreconditionFailed: There is one of another type.
            ValueError: There is no such type.
        """
        routing = self.process.routing
        name = topology.checked_name(exchange, "exchange")
        if passive:
            if not self._query(routing.exchange_type(name)):
                raise errors.ExchangeNotFound(name)
            return
        if type not in topology.EXCHANGE_TYPES:
            known = ", ".join(sorted(topology.EXCHANGE_TYPES))
            raise ValueError(f"exchange {name!r}: there is no type {type!r}, only {known}")
        call = routing.declare_exchange(
            name, type, durable=durable, auto_delete=auto_delete, arguments=topology.canonical(arguments)
        )
        if (found := self._value(call)) != type:
            raise errors.PreconditionFailed(name, f"it is a {found} exchange, not a {type} one; delete it first")
        self.process.keeper.declarations.exchange(name, call)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False, **_: Any) -> None:
        """Remove an exchange with its bindings.

        Raises:
            PreconditionFailed: ``if_unused``, and something is bound to it.
        """
        routing = self.process.routing
        is_gone = self._value(routing.delete_exchange(exchange, if_unused=if_unused))
        if if_unused and not is_gone and self._query(routing.exchange_bindings(exchange)):
            raise errors.PreconditionFailed(exchange, "queues are bound to it, so it was not deleted (if_unused)")

    def exchange_bind(self, destination: str, source: str = "", routing_key: str = "", **_: Any) -> None:
        """Not possible: exchanges lead to queues only."""
        raise NotImplementedError("pgbroker has no bindings between exchanges; bind queues to them")

    exchange_unbind = exchange_bind

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> DeclareOk:
        """Make a queue unless it is there; ``passive``: only check that it is, and count.

        Raises:
            QueueNotFound: Passive, and there is no such queue.
            PreconditionFailed: It shall hold jobs, and there is a transient one of this name.
            ValueError: An argument's value has no meaning.
        """
        process = self.process
        name = topology.checked_name(queue or f"pgbroker.gen-{uuid.uuid4().hex}", "queue")
        if passive:
            kind = self._value(process.routing.queue_kind(name))
            if kind is None:
                raise errors.QueueNotFound(name)
            return self._count(name, kind, None)
        owner = process.ledger.worker if exclusive else None
        traits = topology.traits_of(name, arguments, owner=owner, auto_delete=auto_delete)
        call = process.routing.declare_queue(name, traits)
        kind = self._value(call)
        if kind == "transient" and not traits.is_transient:
            raise errors.PreconditionFailed(
                name, "it is transient (exclusive, auto-delete or x-expires) and holds no jobs; delete it first"
            )
        if kind == "job":
            self._job_queues.add(name)
            return DeclareOk(name, 0, 0) if nowait else self._count(name, kind, CHEAP_COUNT_CAP, process.ledger.worker)
        process.keeper.declarations.queue(name, call, auto_delete=auto_delete)
        if exclusive:
            process.keeper.kept_queues.add(name)
            if self.connection is not None:
                self.connection.exclusive_queues.add(name)
        # kombu warns of a second node of this name where somebody else consumes; what a lost connection of ours
        # left on the books is no such thing
        return self._count(name, kind, None, process.ledger.worker)

    def _count(self, queue: str, kind: str, cap: int | None, besides: str | None = None) -> DeclareOk:
        routing = self.process.routing
        messages = self._value(routing.queue_count(queue, cap) if kind == "job" else routing.mail_count(queue))
        return DeclareOk(queue, messages, self._value(routing.consumer_count(queue, besides=besides)))

    def queue_bind(
        self,
        queue: str,
        exchange: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Let an exchange lead to a queue. Every queue is bound to the default exchange by its name anyway.

        Raises:
            ExchangeNotFound: There is no such exchange.
            QueueNotFound: There is no such queue.
        """
        if not exchange:
            return
        key = topology.checked_name(routing_key or "", "routing key")
        call = self.process.routing.bind_queue(
            exchange, queue, key, topology.topic_pattern(key), topology.canonical(arguments)
        )
        outcome = self._value(call)
        if outcome == "no exchange":
            raise errors.ExchangeNotFound(exchange)
        if outcome == "no queue":
            raise errors.QueueNotFound(queue)
        self.process.keeper.declarations.binding(queue, exchange, call)

    def queue_unbind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Take one binding away."""
        key, canonical = routing_key or "", topology.canonical(arguments)
        bind_call = self.process.routing.bind_queue(exchange, queue, key, topology.topic_pattern(key), canonical)
        self.process.keeper.declarations.no_binding(queue, bind_call)
        self._query(self.process.routing.unbind_queue(exchange, queue, key, canonical))

    def queue_purge(self, queue: str, nowait: bool = False, **_: Any) -> int:
        """Take out what waits, and not what is published meanwhile. Returns how many messages that were."""
        return purge_queue(self.process.pool.query, self.process.routing, queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, nowait: bool = False, **_: Any
    ) -> int:
        """Remove a queue. Returns how many messages it held.

        Raises:
            PreconditionFailed: ``if_unused`` and it has consumers, or ``if_empty`` and messages wait in it.
        """
        routing, purged = self.process.routing, 0
        is_kept = if_unused and self._value(routing.consumer_count(queue))
        if not if_empty and not is_kept:
            purged = purge_queue(self.process.pool.query, routing, queue)
        count = int(self._value(routing.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)))
        if count < 0:
            asked = {"it has consumers (if_unused)": if_unused, "messages wait in it (if_empty)": if_empty}
            reasons = " or ".join(reason for reason, is_asked in asked.items() if is_asked)
            raise errors.PreconditionFailed(queue, f"{reasons}, so it was not deleted")
        self._job_queues.discard(queue)
        self.process.keeper.kept_queues.discard(queue)
        self.process.keeper.declarations.no_queue(queue)
        return purged + count

    def list_bindings(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        """All bindings: queue, exchange, routing key, arguments."""
        return [(*row[:3], loads(row[3])) for row in self._query(self.process.routing.bindings())]

    def get_bindings(self) -> list[dict[str, Any]]:
        """All bindings, in the form that ``celery list bindings`` prints."""
        return [
            {"source": exchange, "destination": queue, "routing_key": key, "arguments": arguments}
            for queue, exchange, key, arguments in self.list_bindings()
        ]

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
        """Turn kombu's ``expires``, ``message_ttl``, ``max_length`` ... into ``x-`` arguments."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments or {}, **options)
        return prepared

    def _query(self, call: Call) -> list[tuple[Any, ...]]:
        return self.process.pool.query(*call)

    def _value(self, call: Call) -> Any:
        return self._query(call)[0][0]
