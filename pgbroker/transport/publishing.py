"""The publishing side of a channel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pgbroker import errors
from pgbroker.queue import bulk
from pgbroker.queue.routing import Dispatched
from pgbroker.queue.store import Message, Published
from pgbroker.transport import handing_on, joining, receipts, topology
from pgbroker.transport.batch import PublishBatch
from pgbroker.transport.declaring import DeclaringChannel
from pgbroker.transport.envelope import Envelope
from pgbroker.transport.revoking import Revocation, read_revocation, stamp_values

if TYPE_CHECKING:
    from pgbroker.transport.link import Link


class PublishingChannel(DeclaringChannel):
    """Publishes; a job on the default exchange is one statement, everything else finds its way on the server."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        #: What kombu calls when: ``basic_return`` for each returned message.
        self.events: dict[str, set[Callable[..., Any]]] = defaultdict(set)

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
        properties = handing_on.with_key(headers, properties)
        return Envelope(body, priority, content_type, content_encoding, headers, properties)

    def basic_publish(
        self, message: Envelope | str, exchange: str = "", routing_key: str = "", mandatory: bool = False, **_: Any
    ) -> None:
        """Store a message; when it returns, the message is committed, or lies in the transaction that it joined.

        Args:
            message: From :meth:`prepare_message`; also a text, as ``celery amqp basic.publish`` has it.
            exchange: Name of the exchange.
            routing_key: Where to, as the exchange has it.
            mandatory: If no binding leads on, it is returned to those who have asked for returned messages
                (``Producer(on_return=...)``), at once; if nobody has, that is an error.

        Raises:
            Unroutable: A task or a mandatory message went to a named exchange and no binding leads on.
        """
        if isinstance(message, str):
            message = self.prepare_message(message, content_type="text/plain", content_encoding="utf-8")
        if not exchange and routing_key in self._job_queues:
            self.publish_job(message, routing_key)
            return
        if exchange and (revocation := read_revocation(exchange, message)):
            self.revoke(revocation)
        must_arrive = "task" in message.headers or mandatory
        if not exchange and not must_arrive and _is_reply(message) and self._is_unknown(routing_key):
            return  # whoever asked is gone, and his queue with him
        unbound = self.process.unbound_exchanges
        if not must_arrive and exchange in unbound:
            return  # an event that nobody is bound to
        before = unbound.generation
        queue = topology.checked_name(routing_key, "queue" if not exchange else "routing key")
        row = message.address(queue, exchange, routing_key, self.options.max_attempts)
        events = self.process.events
        if not must_arrive and events.takes(exchange):
            events.add(row)
            return
        transaction = joining.transaction_for(self.process, message, row)
        call = self.process.routing.dispatch(
            row,
            is_joined=transaction is not None,
            wait_seconds=self.options.dedupe_wait_seconds,
            with_alias=_needs_alias(row),
        )
        query = self._query if transaction is None else transaction.query
        went_to = [Dispatched(*found) for found in query(call)]
        if not exchange and went_to and went_to[0].kind == "job":
            self._job_queues.add(routing_key)
        receipts.hand_in(row.task_id, (d for d in went_to if d.kind == "job"))
        if exchange == events.exchange:
            events.sent(is_heard=bool(went_to))
        if went_to or not exchange:
            return
        if must_arrive:
            self._return(message, errors.Unroutable(exchange, routing_key), mandatory=mandatory)
            return
        if not self._query(self.process.routing.exchange_bindings(exchange)):
            unbound.note(exchange, before)

    def _is_unknown(self, queue: str) -> bool:
        return self._value(self.process.routing.queue_kind(topology.checked_name(queue, "queue"))) is None

    def _return(self, message: Envelope, error: errors.Unroutable, *, mandatory: bool) -> None:
        handlers = self.events["basic_return"] if mandatory else ()
        if not handlers:
            raise error
        for handler in handlers:
            handler(error, error.exchange, error.routing_key, message)

    # -- many at once -------------------------------------------------------------------------------

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """What ``Producer.batch()`` asks for."""
        return PublishBatch(self, self.options.batch_max)

    def address(
        self, message: Envelope, exchange: str, routing_key: str, mandatory: bool
    ) -> tuple[bulk.Letter, Revocation | None]:
        """A message that will be published later, and what it revokes then."""
        queue = topology.checked_name(routing_key, "queue" if not exchange else "routing key")
        row = message.address(queue, exchange, routing_key, self.options.max_attempts)
        must_arrive = bool(exchange) and ("task" in message.headers or mandatory)
        # nobody will be told of a duplicate, so its id must lead on
        with_alias = row.dedupe_key is not None and row.task_name is not None
        return bulk.Letter(row, must_arrive, with_alias), read_revocation(exchange, message) if exchange else None

    def publish_all(self, letters: Sequence[bulk.Letter]) -> None:
        """Store messages in one transaction."""
        bulk.publish_all(self.process.pool, letters)

    # -- one at a time ------------------------------------------------------------------------------

    def revoke(self, revocation: Revocation) -> None:
        """Make a revoke last; the broadcast that carried it goes on to the workers."""
        store = self.process.store
        if revocation.task_ids:
            self._query(store.revoke(revocation.task_ids))
        if revocation.stamps:
            last = self._value(store.revoke_stamps(*stamp_values(revocation.stamps)))
            after: int | None = 0 if last is not None else None
            while after is not None:
                after = self._query(store.cancel_stamped(after, last))[0][1]

    def publish_job(self, message: Envelope, queue: str) -> Published:
        """Put a job into a queue that is known to hold jobs."""
        row = message.address(queue, None, None, self.options.max_attempts)
        transaction = joining.transaction_for_job(self.process, message)
        call = self.process.store.publish(
            row,
            is_joined=transaction is not None,
            wait_seconds=self.options.dedupe_wait_seconds if row.dedupe_key else None,
            with_alias=_needs_alias(row),
        )
        query = self._query if transaction is None else transaction.query
        published = Published(*query(call)[0])
        receipts.hand_in(row.task_id, (published,))
        return published


def _is_reply(message: Envelope) -> bool:
    """Whether it is a fleeting answer to a request, as results of the backend ``rpc://`` are.

    A request names a queue for the answer; what is not fleeting may bear a ``correlation_id`` for reasons of its own.
    """
    properties = message.properties
    is_fleeting = properties.get("delivery_mode") == 1
    return is_fleeting and bool(properties.get("correlation_id")) and not properties.get("reply_to")


def _needs_alias(row: Message) -> bool:
    """Whether, of a duplicate, somebody may ask for the result by the task id that was published."""
    return row.dedupe_key is not None and row.task_name is not None and not receipts.is_expendable(row.task_id)
