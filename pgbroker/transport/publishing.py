"""The publishing side of a channel."""

from __future__ import annotations

from typing import Any

from pgbroker import errors
from pgbroker.queue.routing import Dispatched
from pgbroker.queue.store import Published
from pgbroker.transport import receipts, topology
from pgbroker.transport.declaring import DeclaringChannel
from pgbroker.transport.envelope import Envelope
from pgbroker.transport.revoking import Revocation, read_revocation, stamp_values


class PublishingChannel(DeclaringChannel):
    """Publishes; a job on the default exchange is one statement, everything else finds its way on the server."""

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
        if not exchange and routing_key in self._job_queues:
            self.publish_job(message, routing_key)
            return
        if exchange and (revocation := read_revocation(exchange, message)):
            self._revoke(revocation)
        must_arrive = "task" in message.headers or mandatory
        unbound = self.process.unbound_exchanges
        if not must_arrive and exchange in unbound:
            return  # an event that nobody is bound to
        before = unbound.generation
        queue = topology.checked_name(routing_key, "queue" if not exchange else "routing key")
        row = message.address(queue, exchange, routing_key, self.options.max_attempts)
        call = self.process.routing.dispatch(row, wait_seconds=self.options.dedupe_wait_seconds)
        went_to = [Dispatched(*found) for found in self._query(call)]
        if not exchange and went_to and went_to[0].kind == "job":
            self._job_queues.add(routing_key)
        receipts.hand_in(d for d in went_to if d.kind == "job")
        if went_to or not exchange:
            return
        if must_arrive:
            raise errors.Unroutable(exchange, routing_key)
        if not self._query(self.process.routing.exchange_bindings(exchange)):
            unbound.note(exchange, before)

    def _revoke(self, revocation: Revocation) -> None:
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
        call = self.process.store.publish(
            row, wait_seconds=self.options.dedupe_wait_seconds if row.dedupe_key else None
        )
        published = Published(*self._query(call)[0])
        receipts.hand_in((published,))
        return published
