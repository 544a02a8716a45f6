"""``Producer.batch()`` of kombu: what is published in the block is stored in one transaction at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgbroker import errors
from pgbroker.queue import bulk, joined
from pgbroker.transport.envelope import Envelope

if TYPE_CHECKING:
    from pgbroker.transport.publishing import PublishingChannel
    from pgbroker.transport.revoking import Revocation


class PublishBatch:
    """Messages that wait to be published together; kombu calls the methods (``kombu.messaging``, version 5.7).

    kombu lets a transport send what has gathered whenever there are ``max_size`` messages. That would be all or nothing
    no longer, so here they wait until the end of the block, or until ``flush()`` is called.

    Args:
        channel: Where they were published.
        batch_max: How many may wait.
    """

    def __init__(self, channel: PublishingChannel, batch_max: int) -> None:
        self.channel = channel
        self._batch_max = batch_max
        self._letters: list[bulk.Letter] = []
        self._revocations: list[Revocation] = []
        self._failed: BaseException | None = None

    def publish(
        self, message: Envelope, exchange: str = "", routing_key: str = "", mandatory: bool = False, **_: Any
    ) -> None:
        """Let a message wait. Inside a transaction of the application it is published at once, as a part of that.

        Raises:
            BatchTooLarge: ``batch_max`` messages wait already.
        """
        self._check()
        if joined.current() is not None:
            self.channel.basic_publish(message, exchange, routing_key, mandatory)
            return
        if len(self._letters) >= self._batch_max:
            raise errors.BatchTooLarge(self._batch_max)
        letter, revocation = self.channel.address(message, exchange, routing_key, mandatory)
        self._letters.append(letter)
        if revocation is not None:
            self._revocations.append(revocation)

    def flush(self) -> None:
        """Store what waits, all of it or nothing."""
        self._check()
        letters, self._letters = self._letters, []
        revocations, self._revocations = self._revocations, []
        if not letters:
            return
        try:
            self.channel.publish_all(letters)
        except BaseException as exc:
            self._failed = exc
            raise
        for revocation in revocations:
            self.channel.revoke(revocation)

    def discard(self) -> None:
        """Forget what waits."""
        self._letters.clear()
        self._revocations.clear()

    def close(self) -> None:
        """Nothing: the batch holds no connection."""

    def _check(self) -> None:
        if self._failed is not None:
            raise RuntimeError("this batch has failed, and nothing of it was stored") from self._failed
