"""The nouns of the queue as frozen dataclasses, and the back-off rule."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import Any

#: Seconds before the first retry after a failure, and the longest wait.
BACKOFF_FIRST_SECONDS = 5
BACKOFF_MAX_SECONDS = 600


def compute_backoff(attempt: int) -> int:
    """How long a job waits after its ``attempt``-th failure.

    Args:
        attempt: How often the job has been tried, from 1; smaller numbers count as 1.

    Returns:
        Seconds: 5, doubling with each attempt, at most 600 (1 -> 5, 3 -> 20, 99 -> 600).
    """
    doublings = max(int(attempt), 1) - 1
    if doublings >= BACKOFF_MAX_SECONDS.bit_length():
        return BACKOFF_MAX_SECONDS
    return int(min(BACKOFF_FIRST_SECONDS << doublings, BACKOFF_MAX_SECONDS))


class JobStatus(enum.StrEnum):
    """Where a job stands. ``PENDING``, ``RUNNING`` and ``DEAD`` rows lie in ``jobs``, the others in history."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    DEAD = "DEAD"
    CANCELLED = "CANCELLED"


class AckMode(enum.StrEnum):
    """What the holder of a claim has said about the start of the task; decides what a reaper may do.

    ``UNKNOWN``: the holder never reports a start (a plain consumer), so the job counts as started, late ack.
    ``REPORTED``: the holder will report the start and has not yet. ``EARLY`` and ``LATE``: it has started,
    and was or was not acknowledged before it ran.
    """

    UNKNOWN = "UNKNOWN"
    REPORTED = "REPORTED"
    EARLY = "EARLY"
    LATE = "LATE"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. Times are timezone-aware; a column that does not apply is ``None``.

    ``payload`` holds the keyword arguments and ``args`` the positional ones, both empty where the body
    cannot be decoded here; ``raw`` is then the body as it was published. ``result`` is what
    ``complete(result=...)`` was given. Fields can also be read as ``job["column"]``.
    """

    job_id: int
    task_id: str | None = None
    task_name: str | None = None
    queue: str = "celery"
    status: JobStatus = JobStatus.PENDING
    priority: int = 0
    attempts: int = 0
    max_attempts: int = 5
    run_after: dt.datetime | None = None
    expires_at: dt.datetime | None = None
    enqueued_at: dt.datetime | None = None
    claimed_at: dt.datetime | None = None
    started_at: dt.datetime | None = None
    finished_at: dt.datetime | None = None
    lease_until: dt.datetime | None = None
    worker: str | None = None
    claim: int | None = None
    dedupe_key: str | None = None
    last_error: str | None = None
    payload: dict[str, Any] = dataclasses.field(default_factory=dict)
    args: list[Any] = dataclasses.field(default_factory=list)
    raw: bytes | None = None
    result: Any = None

    def __getitem__(self, column: str) -> Any:
        """The field of that name; ``KeyError`` for an unknown one."""
        if column not in self.__dataclass_fields__:
            raise KeyError(column)
        return getattr(self, column)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Counts of one queue. ``oldest_ready_seconds`` is the age of its oldest ready job, 0 if none is ready."""

    queue: str
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    dead: int = 0
    oldest_ready_seconds: float = 0.0

    def __getitem__(self, column: str) -> Any:
        """The field of that name; ``KeyError`` for an unknown one."""
        if column not in self.__dataclass_fields__:
            raise KeyError(column)
        return getattr(self, column)
