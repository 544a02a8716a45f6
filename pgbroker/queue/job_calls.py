"""Typed calls of the SQL functions and queries for whole jobs, and how their rows become ``Job`` and ``QueueStats``."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pgbroker.model import Job, JobStatus, QueueStats
from pgbroker.postgres.sql_files import in_statement
from pgbroker.queue import task_message
from pgbroker.queue.store import Call

_SHARED = (
    "job_id, task_id, task_name, queue, status::text, priority, attempts, max_attempts, run_after, enqueued_at, "
    "claimed_at, started_at, worker, dedupe_key, last_error"
)
_STORED = f"{_SHARED}, buried_at, expires_at, lease_until, claim, content_type, content_encoding, headers, body"
_FINISHED = f"{_SHARED}, finished_at, result"

_SHARED_FIELDS = tuple(column.strip().removesuffix("::text") for column in _SHARED.split(","))
_STORED_FIELDS = (*_SHARED_FIELDS, "finished_at", "expires_at", "lease_until", "claim")


def stored_job(row: Sequence[Any]) -> Job:
    """A job from a row of ``jobs``, its body decoded."""
    columns, message = row[: len(_STORED_FIELDS)], row[len(_STORED_FIELDS) :]
    content_type, content_encoding, headers, body = message
    decoded = task_message.decode(content_type, content_encoding, headers, bytes(body))
    return Job(**_fields(_STORED_FIELDS, columns), args=decoded.args, payload=decoded.kwargs, raw=decoded.raw)


def finished_job(row: Sequence[Any]) -> Job:
    """A job from a row of history, which keeps no body."""
    *columns, result = row
    return Job(
        **_fields((*_SHARED_FIELDS, "finished_at"), columns), result=None if result is None else json.loads(result)
    )


def _fields(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    fields = dict(zip(names, values, strict=True))
    for name, value in fields.items():
        if isinstance(value, dt.datetime):
            fields[name] = value.astimezone(dt.UTC)
    fields["status"] = JobStatus(fields["status"])
    return fields


def queue_stats(row: Sequence[Any]) -> QueueStats:
    """The counts of one queue."""
    queue, ready, scheduled, running, dead, oldest = row
    return QueueStats(
        queue=queue, ready=ready, scheduled=scheduled, running=running, dead=dead, oldest_ready_seconds=float(oldest)
    )


class JobCalls:
    """Calls in one schema. Use :func:`job_calls_for`."""

    def __init__(self, schema: str) -> None:
        self.prefix = prefix = in_statement(schema) + "."
        claimed = (
            f"{prefix}exchange('{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', %s, %s::text[], %s, %s, false, null, %s)"
        )
        order = "array_position(%s::text[], queue), priority {}, run_after, job_id"
        self._claim = {
            low_first: f"select {_STORED} from {claimed} order by {order.format('asc' if low_first else 'desc')}"
            for low_first in (False, True)
        }

    def claim(
        self, worker: str, queues: Sequence[str], want: int, lease_seconds: float, *, low_first: bool = False
    ) -> Call:
        """Claim up to ``want`` jobs. Rows for :func:`stored_job`, in the order in which they are due to run."""
        names = list(queues)
        return self._claim[low_first], (worker, names, want, lease_seconds, low_first, names)

    def complete(self, job_id: int, worker: str, result: str | None, claim: int | None) -> Call:
        """End a job well. Row: whether it was held."""
        return f"select {self.prefix}complete(%s, %s, %s, %s)", (job_id, worker, result, claim)

    def fail(self, job_id: int, worker: str, error: str, backoff_seconds: float | None, claim: int | None) -> Call:
        """Record a failed attempt. Row: the new status, or ``None`` if the job was not held."""
        return f"select {self.prefix}fail(%s, %s, %s, %s, %s)", (job_id, worker, error, backoff_seconds, claim)

    def requeue(self, job_id: int) -> Call:
        """Give a dead letter another life. Row: outcome, and job and task id of the job that holds its key."""
        return f"select outcome, holder_job_id, holder_task_id from {self.prefix}requeue(%s)", (job_id,)

    def cancel(self, job_id: int, outcome: str | None, detail: str | None) -> Call:
        """End a job that waits. Row: its id, or ``None``."""
        return f"select {self.prefix}cancel(%s, %s, %s)", (job_id, outcome, detail)

    def find(self, job_id: int) -> Call:
        """A job that has not left the queue. Rows for :func:`stored_job`, at most one."""
        return f"select {_STORED} from {self.prefix}jobs where job_id = %s", (job_id,)

    def find_finished(self, job_id: int) -> Call:
        """A finished job, while history lasts. Rows for :func:`finished_job`, at most one."""
        sql = (
            f"select {_FINISHED} from {self.prefix}job_history where job_id = %s"
            f" and finished_at > clock_timestamp() - make_interval(secs => {self.prefix}history_seconds())"
            " order by finished_at desc limit 1"
        )
        return sql, (job_id,)

    def find_active(self, dedupe_key: str, queue: str | None) -> Call:
        """The live job that holds a key, of all queues the oldest. Rows for :func:`stored_job`, at most one.

        A job that has expired before it was claimed holds nothing. Without a queue the index on (queue, dedupe_key)
        is walked from one queue's name to the next.
        """
        live = f"{self.prefix}jobs_live"
        names = (
            f"with recursive names as ("
            f"select min(queue) as name from {live} where dedupe_key is not null"
            f" union all select (select min(j.queue) from {live} j where j.dedupe_key is not null and j.queue > n.name)"
            f" from names n where n.name is not null)"
        )
        sql = (
            f"{names} select {_STORED} from {live} where dedupe_key = %s"
            " and queue = any (case when %s::text is null then array(select name from names) else array[%s::text] end)"
            " and (status = 'RUNNING' or expires_at is null or expires_at > clock_timestamp())"
            " order by job_id limit 1"
        )
        return sql, (dedupe_key, queue, queue)

    def stats(self) -> Call:
        """Counts of all queues that are declared or hold jobs. Rows for :func:`queue_stats`."""
        return (
            f"""
            with moment as materialized (select clock_timestamp() as now),
            live as (
                select queue,
                    count(*) filter (where status = 'PENDING' and run_after <= now) as ready,
                    count(*) filter (where status = 'PENDING' and run_after > now) as scheduled,
                    count(*) filter (where status = 'RUNNING') as running,
                    min(greatest(run_after, enqueued_at))
                        filter (where status = 'PENDING' and run_after <= now) as since
                from {self.prefix}jobs_live, moment
                where status = 'RUNNING' or expires_at is null or expires_at > now
                group by queue),
            dead as (select queue, count(*) as dead from {self.prefix}jobs_dead group by queue),
            names as (select name as queue from {self.prefix}queues
                union select queue from live union select queue from dead)
            select queue, coalesce(ready, 0), coalesce(scheduled, 0), coalesce(running, 0), coalesce(dead, 0),
                greatest(0, coalesce(extract(epoch from now - since), 0))
            from moment, names left join live using (queue) left join dead using (queue)
            order by queue
            """,
            (),
        )

    def rise(self, channel: str) -> Call:
        """Take back what ``doze`` registered, so that no wake-up goes to somebody who does not sleep."""
        return f"delete from {self.prefix}sleepers where channel = %s", (channel,)

    def nudge(self, channel: str) -> Call:
        """Notify one channel."""
        return "select pg_notify(%s, '')", (channel,)


@lru_cache(maxsize=32)
def job_calls_for(schema: str) -> JobCalls:
    """The calls for that schema."""
    return JobCalls(schema)
