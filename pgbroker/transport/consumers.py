"""Who consumes what on one connection, and what was fetched for them and not handed out yet."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

from pgbroker.queue.ledger import Ledger, Tag
from pgbroker.queue.routing import Mail
from pgbroker.queue.store import Claimed
from pgbroker.transport.envelope import open_claimed, open_mail

#: The ledger's name for the consumer of jobs that came when theirs had gone.
NOBODY = ""


@dataclasses.dataclass(slots=True)
class Subscription:
    """One consumer: ``callback`` gets each message of ``queue``.

    ``known_as`` is its tag on the books: kombu numbers tags in each process from 1.
    """

    tag: str
    known_as: str
    queue: str
    is_transient: bool
    no_ack: bool
    callback: Callable[[Any], Any]
    channel: Any


class Consumers:
    """The consumers of one connection."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._by_tag: dict[str, Subscription] = {}
        self._inbox: collections.deque[tuple[Subscription, Claimed | Mail]] = collections.deque()
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._by_tag)

    def __iter__(self) -> Any:
        return iter(list(self._by_tag.values()))

    def add(self, subscription: Subscription) -> None:
        """Begin to feed a consumer."""
        self._by_tag[subscription.tag] = subscription

    def remove(self, tag: str) -> list[Mail]:
        """Stop feeding a consumer.

        Returns:
            The transient messages that were fetched for it and not handed out: the caller puts them back. Jobs in
            that state are given back by way of the ledger.
        """
        gone = self._by_tag.pop(tag, None)
        left = [row for owner, row in self._inbox if owner is gone]
        self._inbox = collections.deque(entry for entry in self._inbox if entry[0] is not gone)
        self.ledger.retire_claims([Tag(row.job_id, row.claim) for row in left if isinstance(row, Claimed)])
        return [row for row in left if isinstance(row, Mail)]

    # -- what they want -----------------------------------------------------------------------------

    @property
    def has_mailbox(self) -> bool:
        """Whether anybody reads transient messages."""
        return any(s.is_transient for s in self._by_tag.values())

    def mail_queues(self) -> list[str]:
        """Transient queues, each once."""
        return list(dict.fromkeys(s.queue for s in self._by_tag.values() if s.is_transient))

    def job_queues(self, channel: Any = None) -> list[str]:
        """Queues of jobs, each once: of one channel, or of all."""
        return list(
            dict.fromkeys(s.queue for s in self._by_tag.values() if not s.is_transient and channel in (None, s.channel))
        )

    def hungriest(self) -> tuple[Any, int]:
        """A channel that consumes jobs and how many it has room for; ``(None, 0)`` if there is no such channel."""
        channels = list(dict.fromkeys(s.channel for s in self._by_tag.values() if not s.is_transient))
        if not channels:
            return None, 0
        channel = max(self.rotated(channels), key=lambda c: c.window.room)
        return channel, min(channel.window.room, channel.free_slots())

    def next_turn(self) -> None:
        """Let the next queue (and channel) go first."""
        self._turn += 1

    def rotated(self, items: list[Any]) -> list[Any]:
        """The items, beginning with the one whose turn it is."""
        at = self._turn % len(items) if items else 0
        return items[at:] + items[:at]

    # -- what they get ------------------------------------------------------------------------------

    def take_claimed(self, rows: list[tuple[Any, ...]]) -> None:
        """Put claimed jobs into the inbox; what nobody consumes any more is given back."""
        by_queue = {s.queue: s for s in self._by_tag.values() if not s.is_transient}
        for row in rows:
            claimed = Claimed(*row)
            subscription = by_queue.get(claimed.queue)
            tag = Tag(claimed.job_id, claimed.claim)
            self.ledger.deliver(tag, subscription.tag if subscription else NOBODY)
            if subscription is None:
                self.ledger.retire_claims([tag])
                continue
            if not subscription.no_ack:
                subscription.channel.window.add(tag)
            self._inbox.append((subscription, claimed))

    def take_mail(self, rows: list[tuple[Any, ...]]) -> None:
        """Put transient messages into the inbox."""
        by_queue = {s.queue: s for s in self._by_tag.values() if s.is_transient}
        for row in rows:
            mail = Mail(*row)
            subscription = by_queue.get(mail.queue)
            if subscription is not None:
                self._inbox.append((subscription, mail))

    def hand_out(self, limit: int | None = None) -> bool:
        """Call the consumers with what is in the inbox, at most ``limit`` messages.

        Returns:
            Whether there was anything.
        """
        count = 0
        while self._inbox and (limit is None or count < limit):
            subscription, row = self._inbox.popleft()
            try:
                message = self._open(subscription, row)
            except ValueError as exc:  # somebody wrote the row by hand
                if isinstance(row, Claimed):
                    self.ledger.bury(Tag(row.job_id, row.claim), f"headers or properties cannot be read: {exc}")
                continue
            if isinstance(row, Claimed) and not self.ledger.hand_over(message.delivery_tag):
                subscription.channel.window.discard(message.delivery_tag)
                continue
            count += 1
            if subscription.no_ack:
                self.ledger.ack(message.delivery_tag)
            subscription.callback(message)
        return count > 0

    @staticmethod
    def _open(subscription: Subscription, row: Claimed | Mail) -> Any:
        if isinstance(row, Claimed):
            return open_claimed(row, subscription.channel, subscription.tag)
        return open_mail(row, subscription.channel, subscription.tag)
