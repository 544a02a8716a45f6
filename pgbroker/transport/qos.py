"""The prefetch window of a channel: how many unacknowledged messages it may have."""

from __future__ import annotations

from typing import Any

from pgbroker.queue.ledger import Tag
from pgbroker.queue.routing import Mail

#: With no limit set, at most so many jobs are claimed in one go.
UNLIMITED_BATCH = 100


class PrefetchWindow:
    """Counts what was delivered and neither acknowledged nor rejected.

    Acks may come from any thread: the operations are atomic, and a count that is late by one message does no harm.
    """

    def __init__(self) -> None:
        self.prefetch_count = 0
        # a transient message is gone from its queue once it is read, so what is to be put back is kept here
        self._unacked: dict[Tag, Mail | None] = {}

    def __len__(self) -> int:
        return len(self._unacked)

    def add(self, tag: Tag, mail: Mail | None = None) -> None:
        """A message was delivered; ``mail`` if it is no job."""
        self._unacked[tag] = mail

    def discard(self, tag: Tag) -> Mail | None:
        """It was acknowledged, rejected, or given back. Returns it if it was no job and is known here."""
        return self._unacked.pop(tag, None)

    def unacked(self) -> list[Tag]:
        """What is delivered and not settled, in the order of delivery."""
        return list(self._unacked)

    def find(self, tag: Any) -> Tag:
        """The tag of an unsettled message, also by its number alone, as ``celery amqp basic.ack`` has it."""
        if isinstance(tag, Tag):
            return tag
        return next((known for known in self.unacked() if known.claim == tag), Tag(0, 0))

    @property
    def room(self) -> int:
        """How many more messages may be delivered now."""
        if not self.prefetch_count:
            return UNLIMITED_BATCH
        return max(0, self.prefetch_count - len(self._unacked))
