"""Who consumes what on one connection, and what was fetched for them and not handed out yet."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from kombu.simple import SimpleBase

from pgbroker.queue.ledger import Ledger, Tag
from pgbroker.queue.routing import Mail
from pgbroker.queue.store import Claimed
from pgbroker.transport.envelope import open_claimed, open_mail
from pgbroker.transport.pace import Pace

#: The ledger's name for the consumer of jobs that came when theirs had gone.
NOBODY = ""

#: Messages read from mailboxes in one go.
MAIL_BATCH = 100

Row = TypeVar("Row", Claimed, Mail)


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
        self._jobs: collections.deque[tuple[Subscription, Claimed]] = collections.deque()
        self._mail: collections.deque[tuple[Subscription, Mail]] = collections.deque()
        self._pace = Pace()
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
            that state go back by way of the ledger.
        """
        gone = self._by_tag.pop(tag, None)
        jobs = [row for owner, row in self._jobs if owner is gone]
        mail = [row for owner, row in self._mail if owner is gone]
        self._jobs = collections.deque(entry for entry in self._jobs if entry[0] is not gone)
        self._mail = collections.deque(entry for entry in self._mail if entry[0] is not gone)
        self.ledger.release(Tag(row.job_id, row.claim) for row in jobs)
        return mail

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

    def hungriest(self) -> tuple[Any, int, bool]:
        """A channel that consumes jobs, how many should be fetched for it, and whether that is worth a round trip.

        Returns:
            ``(None, 0, False)`` if no channel consumes jobs. With work still at hand it is worthwhile to fill half of
            the prefetch window and of what may be fetched ahead of it.
        """
        channels = list(dict.fromkeys(s.channel for s in self._by_tag.values() if not s.is_transient))
        if not channels:
            return None, 0, False
        channel = max(self.rotated(channels), key=lambda c: c.window.room)
        window, waiting = channel.window, sum(owner.channel is channel for owner, _ in self._jobs)
        ahead = self._pace.ahead() if channel.may_fetch_ahead else 0
        want = min(window.room + ahead - waiting, channel.free_slots())
        is_idle = not waiting and not len(window)
        return channel, max(0, want), want >= (1 if is_idle else max(1, (window.prefetch_count + ahead) // 2))

    def next_turn(self) -> None:
        """Let the next queue (and channel) go first."""
        self._turn += 1

    def rotated(self, items: list[Any]) -> list[Any]:
        """The items, beginning with the one whose turn it is."""
        at = self._turn % len(items) if items else 0
        return items[at:] + items[:at]

    # -- what they get ------------------------------------------------------------------------------

    def mail_room(self) -> int:
        """How many transient messages may be fetched now: as many as their consumers have room for."""
        rooms = [MAIL_BATCH if s.no_ack else s.channel.window.room for s in self._by_tag.values() if s.is_transient]
        return min(MAIL_BATCH, max(rooms, default=0)) - len(self._mail)

    def take_claimed(self, rows: list[tuple[Any, ...]], channel: Any) -> None:
        """Put jobs that were claimed for a channel into the inbox; what nobody consumes any more is given back."""
        by_queue = {s.queue: s for s in self._by_tag.values() if not s.is_transient and s.channel is channel}
        for row in rows:
            claimed = Claimed(*row)
            subscription = by_queue.get(claimed.queue)
            tag = Tag(claimed.job_id, claimed.claim)
            self.ledger.deliver(tag, subscription.tag if subscription else NOBODY)
            if subscription is None:
                self.ledger.release([tag])
                continue
            self._jobs.append((subscription, claimed))

    def take_mail(self, rows: list[tuple[Any, ...]]) -> None:
        """Put transient messages into the inbox."""
        by_queue = {s.queue: s for s in self._by_tag.values() if s.is_transient}
        for row in rows:
            mail = Mail(*row)
            subscription = by_queue.get(mail.queue)
            if subscription is not None:
                self._mail.append((subscription, mail))

    def hand_out(self, limit: int | None = None) -> bool:
        """Call the consumers with what was fetched for them: all mail, and jobs as far as their windows allow.

        Args:
            limit: At most so many messages.

        Returns:
            Whether there was anything.
        """
        count = 0
        while (limit is None or count < limit) and (letter := _take_first(self._mail)) is not None:
            subscription, mail = letter
            tag = Tag(0, mail.message_id)
            if not subscription.no_ack:
                subscription.channel.window.add(tag, mail)
            count += self._call(subscription, tag, mail)
        while (limit is None or count < limit) and (entry := _take_first(self._jobs)) is not None:
            count += self._hand_over(*entry)
        return count > 0

    def hand_out_to(self, subscription: Subscription) -> None:
        """Call one consumer with the jobs that were fetched for it, before it is removed.

        One that cannot give back what comes too late for it (it does not acknowledge) or does not look at it (a closed
        ``SimpleQueue``) is spared.
        """
        owner = getattr(subscription.callback, "__self__", None)
        readers = [getattr(callback, "__self__", None) for callback in getattr(owner, "callbacks", None) or ()]
        if subscription.no_ack or any(isinstance(reader, SimpleBase) for reader in readers):
            return
        while (entry := _take_first(self._jobs, subscription)) is not None:
            self._hand_over(*entry)

    def _hand_over(self, subscription: Subscription, job: Claimed) -> int:
        tag = Tag(job.job_id, job.claim)
        if not self.ledger.hand_over(tag):
            return 0
        self._pace.handed_out()
        if not subscription.no_ack:
            subscription.channel.window.add(tag)
        return self._call(subscription, tag, job)

    def _call(self, subscription: Subscription, tag: Tag, row: Claimed | Mail) -> int:
        """Hand one message over. Returns 1, or 0 if somebody wrote the row by hand and it cannot be read."""
        try:
            if isinstance(row, Claimed):
                message = open_claimed(row, subscription.channel, subscription.tag)
            else:
                message = open_mail(row, subscription.channel, subscription.tag)
        except Exception as exc:  # whatever kombu's decoder makes of it, one odd row must not stop a worker
            subscription.channel.window.discard(tag)
            self.ledger.bury(tag, f"headers or properties cannot be read: {exc!r}")
            return 0
        if subscription.no_ack:
            self.ledger.ack(tag)
        if isinstance(row, Claimed) and (judge := subscription.channel.process.judge) is not None:
            judge.meet(message)
        subscription.callback(message)
        return 1


def _take_first(
    inbox: collections.deque[tuple[Subscription, Row]], wanted: Subscription | None = None
) -> tuple[Subscription, Row] | None:
    """Take the first message whose consumer has room; one channel's full window does not hold up another."""
    for at, (subscription, _) in enumerate(inbox):
        if wanted in (None, subscription) and (subscription.no_ack or subscription.channel.window.room):
            entry = inbox[at]
            del inbox[at]
            return entry
    return None
