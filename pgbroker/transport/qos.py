"""The prefetch window of a channel: how many unacknowledged messages it may have."""

from __future__ import annotations

from pgbroker.queue.ledger import Tag

#: With no limit set, at most so many jobs are claimed in one go.
UNLIMITED_BATCH = 100


class PrefetchWindow:
    """Counts what was delivered and neither acknowledged nor rejected.

    Acks may come from any thread: set operations are atomic, and a count that is late by one message does no harm.
    """

    def __init__(self) -> None:
        self.prefetch_count = 0
        self._unacked: set[Tag] = set()

    def __len__(self) -> int:
        return len(self._unacked)

    def add(self, tag: Tag) -> None:
        """A message was delivered."""
        self._unacked.add(tag)

    def discard(self, tag: Tag) -> None:
        """It was acknowledged, rejected, or given back."""
        self._unacked.discard(tag)

    def unacked(self) -> list[Tag]:
        """What is delivered and not settled, in no order."""
        return list(self._unacked)

    @property
    def room(self) -> int:
        """How many more messages may be delivered now."""
        if not self.prefetch_count:
            return UNLIMITED_BATCH
        return max(0, self.prefetch_count - len(self._unacked))
