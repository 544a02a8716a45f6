"""Typed calls of the SQL functions that move jobs. What each does is written at the head of its ``.sql`` file.

A call is a pair of statement and arguments, so that the same call can be waited for (``session.query(*call)``),
sent from an event loop (``session.send(*call)``), or run on an application's own connection.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pgbroker.postgres.sql_files import in_statement

Call = tuple[str, tuple[Any, ...]]


def storable(text: str) -> str:
    """The text without what a Postgres text cannot hold: NUL and lone surrogates become replacement characters."""
    return (
        text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
        if not text.isascii() or "\x00" in text
        else text
    )


class Message(NamedTuple):
    """What is published; the order is that of the parameters of ``publish()``.

    ``run_after`` and ``expires_at`` are points in time, ``delay_seconds`` and ``ttl_seconds`` the same counted
    from now by the server's clock. ``exchange`` and ``routing_key`` are ``None`` for the default exchange.
    """

    queue: str
    task_id: str | None = None
    task_name: str | None = None
    priority: int = 0
    run_after: dt.datetime | None = None
    expires_at: dt.datetime | None = None
    delay_seconds: float | None = None
    ttl_seconds: float | None = None
    dedupe_key: str | None = None
    max_attempts: int = 5
    exchange: str | None = None
    routing_key: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    headers: str | None = None
    properties: str | None = None
    body: bytes = b""


class Published(NamedTuple):
    """What became of a publish: a new job, or the live job that holds the key (``job_id`` is then ``None``)."""

    job_id: int | None
    duplicate_of: int | None = None
    duplicate_task_id: str | None = None


class Claimed(NamedTuple):
    """A claimed job as a consumer needs it. ``claim`` fences every later word about it."""

    job_id: int
    claim: int
    queue: str
    priority: int
    attempts: int
    exchange: str | None
    routing_key: str | None
    content_type: str | None
    content_encoding: str | None
    headers: str | None
    properties: str | None
    body: bytes


_CLAIMED_COLUMNS = ", ".join(Claimed._fields)


class Report:
    """What a worker has to say about its claims, gathered until it is sent. Not thread-safe."""

    __slots__ = ("done_claims", "done_ids", "done_states", "started_claims", "started_early", "started_ids")

    def __init__(self) -> None:
        self.started_ids: list[int] = []
        self.started_claims: list[int] = []
        self.started_early: list[bool] = []
        self.done_ids: list[int] = []
        self.done_claims: list[int] = []
        self.done_states: list[str | None] = []

    def __bool__(self) -> bool:
        return bool(self.done_ids or self.started_ids)

    def __len__(self) -> int:
        return len(self.done_ids) + len(self.started_ids)

    def started(self, job_id: int, claim: int, *, early: bool) -> None:
        """The task has begun; ``early``: it was acknowledged before, so it must never run again."""
        self.started_ids.append(job_id)
        self.started_claims.append(claim)
        self.started_early.append(early)

    def done(self, job_id: int, claim: int, state: str | None) -> None:
        """The task ended well, was ignored or handed on; ``state`` is Celery's. A start still unsent is dropped."""
        if claim in self.started_claims:
            at = self.started_claims.index(claim)
            del self.started_ids[at], self.started_claims[at], self.started_early[at]
        self.done_ids.append(job_id)
        self.done_claims.append(claim)
        self.done_states.append(state)

    def extend(self, later: Report) -> None:
        """Append what was gathered after this report."""
        for claim, job_id, early in zip(later.started_claims, later.started_ids, later.started_early, strict=True):
            self.started(job_id, claim, early=early)
        for claim, job_id, state in zip(later.done_claims, later.done_ids, later.done_states, strict=True):
            self.done(job_id, claim, state)

    def arguments(self) -> tuple[list[Any], ...]:
        """The six arrays that ``settle()`` takes."""
        return (
            self.started_ids,
            self.started_claims,
            self.started_early,
            self.done_ids,
            self.done_claims,
            self.done_states,
        )


#: Types of the six arrays: an empty Python list has none of its own.
_REPORT_SQL = "%s::bigint[], %s::bigint[], %s::boolean[], %s::bigint[], %s::bigint[], %s::text[]"


class Store:
    """Calls of the functions in one schema. Use :func:`store_for`, which keeps one for each schema."""

    def __init__(self, schema: str) -> None:
        self.prefix = prefix = in_statement(schema) + "."
        marks = ", ".join(["%s"] * len(Message._fields))
        self._publish = f"select job_id, duplicate_of, duplicate_task_id from {prefix}publish({marks}, %s, %s, %s)"
        order = "priority {}, run_after, job_id"
        claim = f"select {_CLAIMED_COLUMNS} from {prefix}exchange({_REPORT_SQL}, %s, %s::text[], %s, %s, %s, null, %s)"
        self._exchange = {
            low_first: f"{claim} order by {order.format('asc' if low_first else 'desc')}" for low_first in (False, True)
        }
        self._settle = f"select {prefix}settle({_REPORT_SQL})"

    def publish(
        self,
        message: Message,
        *,
        is_joined: bool = False,
        wait_seconds: float | None = None,
        with_alias: bool = False,
    ) -> Call:
        """Put one job into a queue. Row: the fields of :class:`Published`.

        Args:
            message: The job.
            is_joined: The statement runs inside a caller's transaction.
            wait_seconds: Longest wait for an open transaction that holds the same dedupe key.
            with_alias: Somebody may ask for the result by this task id, also if it is a duplicate.
        """
        wait_ms = None if wait_seconds is None else max(1, int(wait_seconds * 1000))
        return self._publish, (*message, is_joined, wait_ms, with_alias)

    def exchange(
        self,
        report: Report,
        worker: str,
        queues: Sequence[str],
        want: int,
        lease_seconds: float,
        *,
        reports_start: bool,
        low_first: bool = False,
    ) -> Call:
        """Settle what the worker has to say and claim up to ``want`` jobs. Rows: :class:`Claimed`, in order."""
        arguments = (*report.arguments(), worker, list(queues), want, lease_seconds, reports_start, low_first)
        return self._exchange[low_first], arguments

    def settle(self, report: Report) -> Call:
        """Settle without claiming. Row: how many finished jobs were still held."""
        return self._settle, report.arguments()

    def bury(self, ids: Sequence[int], claims: Sequence[int], reasons: Sequence[str]) -> Call:
        """Move held jobs to the dead letters. Rows: the ids."""
        return f"select {self.prefix}bury(%s::bigint[], %s::bigint[], %s::text[])", (
            list(ids),
            list(claims),
            [storable(reason) for reason in reasons],
        )

    def release(self, ids: Sequence[int], claims: Sequence[int]) -> Call:
        """Give back what has not started: old place, attempt returned. Row: how many."""
        return f"select {self.prefix}release(%s::bigint[], %s::bigint[])", (list(ids), list(claims))

    def release_lost(self, worker: str, known_claims: Sequence[int]) -> Call:
        """Give back what this process holds without knowing it. Row: how many."""
        return f"select {self.prefix}release_lost(%s, %s::bigint[])", (worker, list(known_claims))

    def put_back(
        self, job_id: int, claim: int, *, delay_seconds: float = 0, reason: str | None, max_requeues: int | None = None
    ) -> Call:
        """Put a held job back though it may have started. Row: the new status, or ``None`` if the claim was lost."""
        return f"select {self.prefix}put_back(%s, %s, %s, %s, %s)", (
            job_id,
            claim,
            delay_seconds,
            None if reason is None else storable(reason),
            max_requeues,
        )

    def lose(self, job_id: int, claim: int, *, reason: str) -> Call:
        """A held job was lost on the way and shall run again, while attempts are left. Row: the new status."""
        return f"select {self.prefix}lose(%s, %s, %s)", (job_id, claim, storable(reason))

    def stop_job(self, job_id: int, claim: int, *, early: bool) -> Call:
        """The worker of a held job stops after its task began. Row: the new status, or ``None``."""
        return f"select {self.prefix}stop_job(%s, %s, %s)", (job_id, claim, early)

    def start_job(self, job_id: int, claim: int, *, is_repeated: bool) -> Call:
        """Commit that an early-acked task begins. Row: whether it may run; ``is_repeated``: after a call unanswered."""
        return f"select {self.prefix}start_job(%s, %s, %s)", (job_id, claim, is_repeated)

    def retract_start(self, job_id: int, claim: int) -> Call:
        """Give back a job whose task has not begun, though its start may be recorded. Row: how many."""
        return f"select {self.prefix}retract_start(%s, %s)", (job_id, claim)

    def renew(self, worker: str, lease_seconds: float, claims: Sequence[int] | None = None) -> Call:
        """Extend leases of one worker process, all of them or those of ``claims``. Row: how many it holds."""
        return f"select {self.prefix}renew(%s, %s, %s::bigint[])", (
            worker,
            lease_seconds,
            None if claims is None else list(claims),
        )

    def reap(self, limit: int = 1000) -> Call:
        """Take back what lies under leases that ran out. Rows: id and new status."""
        return f"select reaped_job_id, new_status from {self.prefix}reap(%s)", (limit,)

    def revoke(self, task_ids: Sequence[str]) -> Call:
        """Let no run of these tasks begin any more. Row: how many waiting jobs were ended."""
        return f"select {self.prefix}revoke(%s::text[])", (list(task_ids),)

    def revoke_stamps(self, headers: Sequence[str], values: Sequence[str]) -> Call:
        """The same for tasks with such stamps: names, and values as JSON. Row: how far to go with what waits."""
        return f"select {self.prefix}revoke_stamps(%s::text[], %s::text[])", (list(headers), list(values))

    def cancel_stamped(self, after: int, last: int) -> Call:
        """End a batch of waiting jobs with revoked stamps. Row: how many ended, and where to go on if there is more."""
        return f"select cancelled, last_id from {self.prefix}cancel_stamped(%s, %s)", (after, last)

    def doze(self, queues: Sequence[str], channel: str | None, seconds: float) -> Call:
        """Register as a sleeper and look. Row: seconds until the next job is due or ``None``; is one ready; is mail."""
        return f"select due_seconds, is_ready, has_mail from {self.prefix}doze(%s::text[], %s, %s)", (
            list(queues),
            channel,
            seconds,
        )

    def wake(self, queues: Sequence[str]) -> Call:
        """Hand a wake-up on to another sleeper of each queue."""
        return f"select {self.prefix}wake(q) from unnest(%s::text[]) q", (list(queues),)

    def queue_channels(self, queues: Sequence[str]) -> Call:
        """Rows: the NOTIFY channel that transactions use for each queue."""
        return f"select {self.prefix}queue_channel(q) from unnest(%s::text[]) q", (list(queues),)


@lru_cache(maxsize=32)
def store_for(schema: str) -> Store:
    """The calls for that schema."""
    return Store(schema)
