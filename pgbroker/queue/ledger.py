"""What this process holds: every claimed job from delivery to settlement.

A word about a claim that the ledger does not know, because it was settled or given back, changes nothing.
"""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pgbroker.queue.outgoing import Outgoing
from pgbroker.queue.store import Call, Store


class Tag(NamedTuple):
    """A delivery tag: good on any connection, since the claim fences it. ``job_id`` is 0 for a transient message."""

    job_id: int
    claim: int


@dataclasses.dataclass(slots=True)
class Holding:
    """One held job.

    Attributes:
        is_handed_over: Its consumer has it; until then it can be given back without asking anybody.
        is_followed: Its task's outcome will be reported, so an ack does not end it.
        is_submitted: The worker's pool has it and will run it, whatever becomes of the connection.
        is_early: It was acknowledged before it began, so it must never run again.
    """

    tag: Tag
    consumer_tag: str
    is_handed_over: bool = False
    is_followed: bool = False
    is_submitted: bool = False
    is_started: bool = False
    is_early: bool = False
    retired_at: float | None = None
    delivered_at: float = dataclasses.field(default_factory=time.monotonic)


class Ledger(Outgoing):
    """The claims of one process. All methods may be called from any thread or greenlet.

    Attributes:
        worker: Names this process start in ``jobs.worker``; never used by another.
        is_stopping: Whether the process is shutting down, so that nothing more is handed over.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.worker = f"{os.uname().nodename}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        self.is_stopping: Callable[[], bool] = _no
        self._held: dict[int, Holding] = {}

    def __len__(self) -> int:
        return len(self._held)

    def claims(self) -> list[int]:
        """The claims whose leases this process wants: what it holds, and what ended and is still to be said."""
        with self._lock:
            return [*self._held, *self.unsaid_ends()]

    # -- from delivery to settlement ----------------------------------------------------------------

    def deliver(self, tag: Tag, consumer_tag: str) -> None:
        """A job was claimed for a consumer."""
        with self._lock:
            self._held[tag.claim] = Holding(tag, consumer_tag)

    def hand_over(self, tag: Tag) -> bool:
        """The job goes to its consumer now. ``False``: it must not, because it was or will be given back."""
        with self._lock:
            holding = self._held.get(tag.claim)
            if holding is None or self.is_stopping():
                return False
            holding.is_handed_over = True
            return True

    def follow(self, tag: Tag) -> bool:
        """The outcome of this job's task will be reported by :meth:`end`, so an ack alone does not end it."""
        holding = self._held.get(tag.claim)
        if holding is None:
            return False
        holding.is_followed = True
        return True

    def is_unfollowed(self, tag: Tag) -> bool:
        """Whether this job is held and nobody reports its outcome: then an ack or a rejection ends it."""
        holding = self._held.get(tag.claim)
        return holding is not None and holding.tag == tag and not holding.is_followed

    def submit(self, tag: Tag) -> None:
        """The worker's pool has the task and will run it."""
        holding = self._held.get(tag.claim)
        if holding is not None:
            holding.is_submitted = True

    def start(self, tag: Tag, *, early: bool, is_recorded: bool = False) -> None:
        """The task of this job has begun.

        Args:
            tag: The job.
            early: It was acknowledged before it ran.
            is_recorded: Whoever runs it tells the server itself (``strict_start``).
        """
        with self._lock:
            holding = self._held.get(tag.claim)
            if holding is None or holding.is_started:
                return
            holding.is_started, holding.is_early = True, early
            if is_recorded:
                return
            self._report.started(tag.job_id, tag.claim, early=early)
        self._news()

    def not_begun(self, tag: Tag, *, may_be_recorded: bool) -> None:
        """The pool has not run the task after all (``strict_start``): the job goes back to its old place.

        Args:
            tag: The job.
            may_be_recorded: Its start may stand in its row all the same.
        """
        if may_be_recorded:
            self._end_by(tag, self.store.retract_start(tag.job_id, tag.claim))
        else:
            self._end_by(tag, self.store.release([tag.job_id], [tag.claim]))

    def ack(self, tag: Tag) -> None:
        """The consumer is done with the message; ends the job unless its task is followed."""
        if self.is_unfollowed(tag):
            self.end(tag, None)

    def end(self, tag: Tag, state: str | None) -> None:
        """The job is over: DONE, or CANCELLED for ``REVOKED``. ``state`` is Celery's state of the task."""
        with self._lock:
            if not self._forget(tag):
                return
            self._report.done(tag.job_id, tag.claim, state)
        self._news()

    def bury(self, tag: Tag, reason: str) -> None:
        """The job failed for good: it becomes a dead letter, with the reason."""
        self._end_by(tag, self.store.bury([tag.job_id], [tag.claim], [reason]))

    def put_back(self, tag: Tag, *, reason: str | None, max_requeues: int | None) -> None:
        """The job shall run again, though it may have started."""
        call = self.store.put_back(tag.job_id, tag.claim, reason=reason, max_requeues=max_requeues)
        self._end_by(tag, call)

    def lose(self, tag: Tag, reason: str) -> None:
        """What ran the task is gone; it shall run again with back-off, while attempts are left."""
        self._end_by(tag, self.store.lose(tag.job_id, tag.claim, reason=reason))

    def stop(self, tag: Tag) -> None:
        """The worker has broken its task off, or stops: a late-acked job runs again, an early one is dead."""
        holding = self._held.get(tag.claim)
        if holding is not None:
            self._end_by(tag, self.store.stop_job(tag.job_id, tag.claim, early=holding.is_early))

    def _end_by(self, tag: Tag, call: Call) -> None:
        with self._lock:
            if not self._forget(tag):
                return
            self._write_down(call, [tag.claim])
        self._news()

    def _forget(self, tag: Tag) -> bool:
        """Hold this job no longer. A transient message's tag may bear the number of a claim, and is nothing here."""
        holding = self._held.get(tag.claim)
        if holding is None or holding.tag != tag:
            return False
        del self._held[tag.claim]
        return True

    # -- giving back --------------------------------------------------------------------------------

    def retire(self, consumer_tags: set[str], *, but_submitted: bool = False) -> None:
        """What these consumers got and did not start will not be started any more.

        A task may be on its way into a pool process at this very moment, so nothing is given back at once:
        see :meth:`give_back`.

        Args:
            consumer_tags: The consumers.
            but_submitted: What the pool has will be started all the same.
        """
        now = time.monotonic()
        with self._lock:
            for holding in list(self._held.values()):
                is_kept = holding.is_started or (but_submitted and holding.is_submitted)
                if not is_kept and holding.consumer_tag in consumer_tags:
                    holding.retired_at = holding.retired_at or now

    def release(self, tags: Iterable[Tag]) -> None:
        """Jobs that were never handed to a consumer, and will not be, go back at once."""
        with self._lock:
            idle = [tag for tag in tags if self._forget(tag)]
            if not idle:
                return
            self._release(idle)
        self._news()

    def _release(self, tags: list[Tag]) -> None:
        claims = [tag.claim for tag in tags]
        self._write_down(self.store.release([tag.job_id for tag in tags], claims), claims)

    def give_back(self, grace_seconds: float, waiting_seconds: float = float("inf")) -> None:
        """Release what was retired so long ago and has still not started: old place, attempt returned.

        Args:
            grace_seconds: Since it was retired.
            waiting_seconds: Also what has waited so long to be handed over. Where the process is stopping, whatever
                has not been handed over goes back at once.
        """
        now = time.monotonic()
        limit, fetched_limit = now - grace_seconds, now - (0 if self.is_stopping() else waiting_seconds)
        with self._lock:
            idle = [
                h.tag
                for h in list(self._held.values())
                if not h.is_started
                and (
                    (h.retired_at is not None and h.retired_at <= limit)
                    or (not h.is_handed_over and h.delivered_at <= fetched_limit)
                )
            ]
            if not idle:
                return
            for tag in idle:
                self._held.pop(tag.claim, None)
            self._release(idle)
        self._news()

    @property
    def has_retired(self) -> bool:
        """Whether :meth:`give_back` may have something to do."""
        with self._lock:
            return any(h.retired_at is not None and not h.is_started for h in list(self._held.values()))

    def stop_all(self) -> None:
        """The process ends: nothing that it holds is run by it any more."""
        with self._lock:
            holdings = list(self._held.values())
            for holding in holdings:
                if holding.is_handed_over and not holding.is_followed:
                    holding.is_started = True  # a plain consumer never says whether it has begun
                elif not holding.is_started:
                    holding.retired_at = 0.0
        for holding in holdings:
            if holding.is_started:
                self.stop(holding.tag)
        self.give_back(0.0)


def _no() -> bool:
    return False
