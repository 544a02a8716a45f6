"""kombu's channel: publishing, declaring, consuming. Every method is one statement, or none."""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kombu.transport import base
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined]

from pgbroker import errors
from pgbroker.queue.ledger import Tag
from pgbroker.queue.routing import Dispatched, Mail
from pgbroker.queue.store import Call, Claimed, Published, Report
from pgbroker.transport import receipts, topology
from pgbroker.transport.consumers import Subscription
from pgbroker.transport.envelope import DeliveredMessage, Envelope, open_claimed, open_mail
from pgbroker.transport.qos import PrefetchWindow
from pgbroker.transport.revoking import Revocation, bears_stamp, needles, read_revocation

if TYPE_CHECKING:
    from pgbroker.transport.link import Link

#: ``queue_declare`` of a queue with more jobs than that says so many; a passive declare counts all.
CHEAP_COUNT_CAP = 1000

_channel_ids = itertools.count(1)


class DeclareOk(NamedTuple):
    """What ``queue_declare`` returns, as AMQP's ``queue.declare-ok``."""

    queue: str
    message_count: int
    consumer_count: int


class Channel(base.StdChannel):
    """A channel of one :class:`~pgbroker.transport.link.Link`."""

    Message: ClassVar[type[DeliveredMessage]] = DeliveredMessage

    def __init__(self, link: Link) -> None:
        self.connection: Link | None = link
        self.channel_id = next(_channel_ids)
        self.options = link.options
        self.process = link.process
        self.window = PrefetchWindow()
        self.events: dict[str, set[Callable[..., Any]]] = defaultdict(set)
        self.no_ack_consumers: set[str] = set()
        self._job_queues: set[str] = set()

    # -- publishing ---------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> Envelope:
        """Wrap an encoded body for :meth:`basic_publish`."""
        return Envelope(body, priority, content_type, content_encoding, headers, properties)

    def basic_publish(
        self, message: Envelope, exchange: str = "", routing_key: str = "", mandatory: bool = False, **_: Any
    ) -> None:
        """Store a message; when it returns, the message is committed.

        Raises:
            Unroutable: A task went to a named exchange and no binding leads on.
        """
        if exchange and (revocation := read_revocation(exchange, message)):
            self._revoke(revocation)
        if not exchange and routing_key in self._job_queues:
            self.publish_job(message, routing_key)
            return
        queue = topology.checked_name(routing_key, "queue" if not exchange else "routing key")
        row = message.address(queue, exchange, routing_key, self.options.max_attempts)
        call = self.process.routing.dispatch(row, wait_seconds=self.options.dedupe_wait_seconds)
        went_to = [Dispatched(*found) for found in self._query(call)]
        if not exchange and went_to and went_to[0].kind == "job":
            self._job_queues.add(routing_key)
        receipts.hand_in(d for d in went_to if d.kind == "job")
        if not went_to and exchange and ("task" in message.headers or mandatory):
            raise errors.Unroutable(exchange, routing_key)

    def _revoke(self, revocation: Revocation) -> None:
        """Make a revoke last; the broadcast that carried it goes on to the workers."""
        store = self.process.store
        if revocation.task_ids:
            self._query(store.revoke(revocation.task_ids))
        if revocation.stamps:
            found = self._query(store.waiting_headers(needles(revocation.stamps)))
            ids = sorted(job_id for job_id, headers in found if bears_stamp(headers, revocation.stamps))
            if ids:
                self._query(store.cancel(ids, "REVOKED", "revoked by a stamped header"))

    def publish_job(self, message: Envelope, queue: str) -> Published:
        """Put a job into a queue that is known to hold jobs."""
        row = message.address(queue, None, None, self.options.max_attempts)
        call = self.process.store.publish(
            row, wait_seconds=self.options.dedupe_wait_seconds if row.dedupe_key else None
        )
        published = Published(*self._query(call)[0])
        receipts.hand_in((published,))
        return published

    # -- consuming ----------------------------------------------------------------------------------

    @property
    def reports_start(self) -> bool:
        """Whether the consumer will say when a task begins, as Celery's worker does."""
        return self.process.reports_start

    def free_slots(self) -> int:
        """How many more jobs may be held, for ``claim_when_free``; without it, any number."""
        slots = self.process.pool_slots
        if not self.options.claim_when_free or slots is None:
            return 1 << 20
        return max(0, slots() - len(self.process.ledger))

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        consumer_tag: str | None = None,
        callback: Callable[[Any], Any] | None = None,
        nowait: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> str:
        """Begin to deliver messages of a queue to ``callback``. Returns the consumer's tag."""
        link = self._link
        tag = consumer_tag or f"ctag{uuid.uuid4().hex}"
        known_as = f"{tag}#{self.channel_id}"
        kind = self._value(self.process.routing.queue_kind(queue))
        if kind is None:
            raise errors.QueueNotFound(queue)
        if no_ack:
            self.no_ack_consumers.add(tag)
        subscription = Subscription(
            tag=tag,
            known_as=known_as,
            queue=queue,
            is_transient=kind == "transient",
            no_ack=no_ack,
            callback=callback or (lambda message: None),
            channel=self,
        )
        self.process.keeper.consumers[known_as] = queue
        self._query(self.process.keeper.attend_call())
        link.pump.subscribe(subscription)
        return tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        """Stop delivering to a consumer. What it got stays with it, unless the worker is stopping."""
        self.no_ack_consumers.discard(consumer_tag)
        link = self.connection
        mine = [s for s in link.subscriptions() if s.tag == consumer_tag] if link is not None else []
        if not mine:
            return
        if self.process.ledger.is_stopping():
            self.process.ledger.retire({consumer_tag})
            self.process.keeper.nudge()
        self._depart(mine)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> DeliveredMessage | None:
        """One message of the queue, or ``None``."""
        kind = self._value(self.process.routing.queue_kind(queue))
        if kind is None:
            raise errors.QueueNotFound(queue)
        if kind == "transient":
            rows = self._query(self.process.routing.fetch_mail([queue], 1))
            return open_mail(Mail(*rows[0]), self, None) if rows else None
        ledger = self.process.ledger
        low_first = self.options.priority_order == "low_first"
        call = self.process.store.exchange(
            Report(), ledger.worker, [queue], 1, self.options.lease_seconds, reports_start=False, low_first=low_first
        )
        rows = self._query(call)
        if not rows:
            return None
        message = open_claimed(Claimed(*rows[0]), self, None)
        ledger.deliver(message.delivery_tag, "")
        ledger.hand_over(message.delivery_tag)
        self.process.keeper.start()
        if no_ack:
            self.basic_ack(message.delivery_tag)
        else:
            self.window.add(message.delivery_tag)
        return message

    def basic_ack(self, delivery_tag: Tag, multiple: bool = False) -> None:
        """The message is dealt with."""
        for tag in self._tags(delivery_tag, multiple):
            self.window.discard(tag)
            self.process.ledger.ack(tag)
        self._flush_unless_driven()

    def basic_reject(self, delivery_tag: Tag, requeue: bool = False) -> None:
        """Refuse a message: it runs again (``requeue``) or becomes a dead letter."""
        self.window.discard(delivery_tag)
        if requeue:
            self.process.ledger.put_back(
                delivery_tag, reason="rejected with requeue", max_requeues=self.options.max_requeues
            )
        else:
            self.process.ledger.bury(delivery_tag, "rejected by its consumer")
        self._flush_unless_driven()

    def basic_nack(self, delivery_tag: Tag, multiple: bool = False, requeue: bool = True) -> None:
        """Refuse one message or all so far, as AMQP's ``basic.nack``."""
        for tag in self._tags(delivery_tag, multiple):
            self.basic_reject(tag, requeue=requeue)

    def basic_recover(self, requeue: bool = False) -> None:
        """Put back everything that was delivered on this channel and not acknowledged."""
        for tag in self.window.unacked():
            self.basic_reject(tag, requeue=True)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the prefetch window of this channel; 0 is no limit."""
        self.window.prefetch_count = prefetch_count

    def flow(self, active: bool = True) -> None:
        """Nothing: a consumer that wants no messages sets its prefetch window."""

    def _tags(self, delivery_tag: Tag, multiple: bool) -> list[Tag]:
        return [tag for tag in self.window.unacked() if tag <= delivery_tag] if multiple else [delivery_tag]

    def _flush_unless_driven(self) -> None:
        """Without an event loop nobody else would send the ack before the next drain."""
        link = self.connection
        if link is None or link.is_driven or self.process.reports_start:
            return
        with self.process.pool.lend() as session:
            self.process.keeper.say_everything(session)

    # -- declaring ----------------------------------------------------------------------------------

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
        """Make an exchange unless it is there; ``passive``: only check that it is."""
        name = topology.checked_name(exchange, "exchange")
        if passive:
            if not self._query(self.process.routing.exchange_type(name)):
                raise errors.QueueNotFound(name)
            return
        self._query(self.process.routing.declare_exchange(name, type, durable=durable, auto_delete=auto_delete))

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False, **_: Any) -> None:
        """Remove an exchange with its bindings."""
        self._query(self.process.routing.delete_exchange(exchange, if_unused=if_unused))

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
        """
        process = self.process
        name = topology.checked_name(queue or f"pgbroker.gen-{uuid.uuid4().hex}", "queue")
        if passive:
            kind = self._value(process.routing.queue_kind(name))
            if kind is None:
                raise errors.QueueNotFound(name)
            return self._count(name, kind, None)
        traits = topology.traits_of(name, arguments, exclusive=exclusive, auto_delete=auto_delete)
        owner = process.ledger.worker if exclusive else None
        kind = self._value(
            process.routing.declare_queue(
                name,
                traits.arguments,
                is_transient=traits.is_transient,
                owner=owner,
                auto_delete=auto_delete,
                expires_seconds=traits.expires_seconds,
                ttl_seconds=traits.ttl_seconds,
                max_length=traits.max_length,
            )
        )
        if kind == "job":
            self._job_queues.add(name)
            return DeclareOk(name, 0, 0) if nowait else self._count(name, kind, CHEAP_COUNT_CAP, process.ledger.worker)
        if exclusive:
            process.keeper.kept_queues.add(name)
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
        """Let an exchange lead to a queue. Every queue is bound to the default exchange by its name anyway."""
        if not exchange:
            return
        key = topology.checked_name(routing_key or "", "routing key")
        self._query(self.process.routing.bind_queue(exchange, queue, key, topology.topic_pattern(key)))

    def queue_unbind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Take one binding away."""
        self._query(self.process.routing.unbind_queue(exchange, queue, routing_key or ""))

    def queue_purge(self, queue: str, nowait: bool = False, **_: Any) -> int:
        """Take out what waits. Returns how many messages that were."""
        return int(self._value(self.process.routing.purge_queue(queue)))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, nowait: bool = False, **_: Any
    ) -> int:
        """Remove a queue. Returns how many messages it held."""
        self._job_queues.discard(queue)
        self.process.keeper.kept_queues.discard(queue)
        count = self._value(self.process.routing.delete_queue(queue, if_unused=if_unused, if_empty=if_empty))
        return max(0, int(count))

    def list_bindings(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        """All bindings: queue, exchange, routing key, arguments."""
        return [(row[0], row[1], row[2], {}) for row in self._query(self.process.routing.bindings())]

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

    # -- the end ------------------------------------------------------------------------------------

    def message_to_python(self, message: DeliveredMessage) -> DeliveredMessage:
        """The message itself: it is opened when it is delivered."""
        return message

    def close(self) -> None:
        """Cancel the channel's consumers and leave the connection."""
        link = self.connection
        if link is None:
            return
        link.channels.discard(self)
        if link.is_closed:
            self.connection = None
            return
        self._depart([s for s in link.subscriptions() if s.channel is self])
        if not self.reports_start:
            # AMQP gives back what a closed channel did not acknowledge; a worker's tasks run on and ack later
            self.basic_recover()
        self.connection = None

    def _depart(self, subscriptions: list[Subscription]) -> None:
        link = self.connection
        for subscription in subscriptions:
            self.process.keeper.consumers.pop(subscription.known_as, None)
            if link is not None:
                link.pump.unsubscribe(subscription)
        if subscriptions:
            known_as = [s.known_as for s in subscriptions]
            self._query(self.process.routing.depart(self.process.ledger.worker, known_as))

    @property
    def _link(self) -> Link:
        if self.connection is None:
            raise errors.ConnectionLost("the channel is closed")
        return self.connection

    def _query(self, call: Call) -> list[tuple[Any, ...]]:
        return self.process.pool.query(*call)

    def _value(self, call: Call) -> Any:
        return self._query(call)[0][0]
