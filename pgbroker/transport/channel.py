"""kombu's channel: its consuming side, on top of declaring and publishing."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from pgbroker import errors
from pgbroker.queue.ledger import Tag
from pgbroker.queue.routing import Mail
from pgbroker.queue.store import Claimed, Report
from pgbroker.transport.consumers import Subscription
from pgbroker.transport.envelope import DeliveredMessage, open_claimed, open_mail
from pgbroker.transport.publishing import PublishingChannel
from pgbroker.transport.qos import PrefetchWindow

if TYPE_CHECKING:
    from pgbroker.transport.link import Link

_channel_ids = itertools.count(1)


class Channel(PublishingChannel):
    """A channel of one :class:`~pgbroker.transport.link.Link`."""

    Message: ClassVar[type[DeliveredMessage]] = DeliveredMessage

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.channel_id = next(_channel_ids)
        self.window = PrefetchWindow()
        self.no_ack_consumers: set[str] = set()

    # -- consuming ----------------------------------------------------------------------------------

    @property
    def reports_start(self) -> bool:
        """Whether the consumer will say when a task begins, as Celery's worker does."""
        return self.process.reports_start

    @property
    def may_fetch_ahead(self) -> bool:
        """Whether jobs beyond the prefetch window may wait in the inbox for a moment."""
        return self.reports_start and self.window.prefetch_count > 0 and not self.options.claim_when_free

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
        if link is not None and not link.is_driven and not self.reports_start and not self.window.prefetch_count:
            # with AMQP and no limit all of it is on its way already, and comes in before the confirmation does
            for subscription in mine:
                link.pump.consumers.hand_out_to(subscription)
        self._depart(mine)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> DeliveredMessage | None:
        """One message of the queue, or ``None``."""
        kind = self._value(self.process.routing.queue_kind(queue))
        if kind is None:
            raise errors.QueueNotFound(queue)
        if kind == "transient":
            return self._get_mail(queue, no_ack)
        ledger = self.process.ledger
        low_first = self.options.priority_order == "low_first"
        call = self.process.store.exchange(
            Report(), ledger.worker, [queue], 1, self.options.lease_seconds, reports_start=False, low_first=low_first
        )
        claiming = self.process.claiming
        while not claiming.begin():
            time.sleep(0.01)  # another connection looks for claims whose answers were lost
        try:
            rows = self._query(call)
            if not rows:
                claiming.end()
                return None
            message = open_claimed(Claimed(*rows[0]), self, None)
            ledger.deliver(message.delivery_tag, "")
        except BaseException:
            claiming.end(is_lost=True)
            raise
        claiming.end()
        ledger.hand_over(message.delivery_tag)
        self.process.keeper.start()
        if no_ack:
            self.basic_ack(message.delivery_tag)
        else:
            self.window.add(message.delivery_tag)
        return message

    def _get_mail(self, queue: str, no_ack: bool) -> DeliveredMessage | None:
        rows = self._query(self.process.routing.get_mail(queue))
        if not rows:
            return None
        mail = Mail(*rows[0])
        if not no_ack:
            self.window.add(Tag(0, mail.message_id), mail)
        return open_mail(mail, self, None)

    def basic_ack(self, delivery_tag: Tag | int, multiple: bool = False) -> None:
        """The message is dealt with."""
        ledger = self.process.ledger
        for tag in self._tags(delivery_tag, multiple):
            if self.window.discard(tag) is None:
                ledger.ack(tag)
            else:
                ledger.signal()  # nothing to say, but there is room for another
        self._flush_unless_driven()

    def basic_reject(self, delivery_tag: Tag | int, requeue: bool = False) -> None:
        """Refuse a message: it runs again (``requeue``) or becomes a dead letter."""
        delivery_tag = self.window.find(delivery_tag)
        mail = self.window.discard(delivery_tag)
        if mail is not None:
            routing = self.process.routing
            call = routing.return_mail(mail, is_redelivered=True) if requeue else routing.refuse_mail(mail)
            self.process.ledger.say(call)
        elif requeue:
            self.process.ledger.put_back(
                delivery_tag, reason="rejected with requeue", max_requeues=self.options.max_requeues
            )
        else:
            self.process.ledger.bury(delivery_tag, "rejected by its consumer")
        self._flush_unless_driven()

    def basic_nack(self, delivery_tag: Tag | int, multiple: bool = False, requeue: bool = True) -> None:
        """Refuse one message or all so far, as AMQP's ``basic.nack``."""
        for tag in self._tags(delivery_tag, multiple):
            self.basic_reject(tag, requeue=requeue)

    def basic_recover(self, requeue: bool = False) -> None:
        """Put everything that was delivered on this channel and not acknowledged back to its old place."""
        for tag in self.window.unacked():
            mail = self.window.discard(tag)
            if mail is not None:
                self.process.ledger.say(self.process.routing.return_mail(mail, is_redelivered=True))
            else:
                self.process.ledger.stop(tag)
        self._flush_unless_driven()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the prefetch window of this channel; 0 is no limit."""
        self.window.prefetch_count = prefetch_count

    def flow(self, active: bool = True) -> None:
        """Nothing: a consumer that wants no messages sets its prefetch window."""

    def _tags(self, delivery_tag: Tag | int, multiple: bool) -> list[Tag]:
        last = self.window.find(delivery_tag)
        if not multiple:
            return [last]
        unacked = self.window.unacked()
        return unacked[: unacked.index(last) + 1] if last in unacked else []

    def _flush_unless_driven(self) -> None:
        """Without an event loop nobody else would send the ack before the next drain."""
        link = self.connection
        if link is None or link.is_driven or self.process.reports_start:
            return
        with self.process.pool.lend() as session:
            self.process.keeper.say_everything(session)

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
        self.give_back()
        self.connection = None

    def give_back(self) -> None:
        """AMQP gives back what a closed channel did not acknowledge; a worker's tasks run on and ack later."""
        if not self.reports_start and len(self.window):
            self.basic_recover()

    def _depart(self, subscriptions: list[Subscription]) -> None:
        link = self.connection
        for subscription in subscriptions:
            self.process.keeper.dismiss(subscription.known_as)
            if link is not None:
                link.pump.unsubscribe(subscription)
        if not subscriptions:
            return
        call = self.process.routing.depart(self.process.ledger.worker, [s.known_as for s in subscriptions])
        if self.process.is_interrupted():
            self.process.ledger.say(call)
        else:
            self._query(call)
            self._flush_unless_driven()

    @property
    def _link(self) -> Link:
        if self.connection is None:
            raise errors.ConnectionLost("the channel is closed")
        return self.connection
