"""What an operator may do: requeue, cancel, pause, take back, prune. Each change is a short transaction of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sqlalchemy import exists, func, or_, select

from pgbroker import errors
from pgbroker.monitor.insight import count_dead, fetch, matching, queue_names
from pgbroker.monitor.settings import nearest
from pgbroker.options import Options
from pgbroker.postgres import schema
from pgbroker.postgres.pool import pool_for
from pgbroker.postgres.sql_files import in_statement
from pgbroker.queue.job_calls import job_calls_for
from pgbroker.queue.store import store_for
from pgbroker.queue.upkeep import Pruned, Upkeep

#: Dead letters that are requeued in one transaction.
REQUEUE_BATCH = 100

#: Longest wait for each of them, in milliseconds; see ``requeue_many.sql``.
REQUEUE_WAIT_MS = 200

#: Jobs that are taken back in one transaction.
REAP_BATCH = 1000

_BIGINT_MAX = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Requeued:
    """What became of one dead letter.

    ``outcome`` is ``requeued``; ``absent`` (no such dead letter); ``taken`` (the live job ``holder_job_id`` holds its
    dedupe key); or ``busy`` (an open transaction is about to take the key, or another operator is at it).
    """

    job_id: int
    outcome: str
    holder_job_id: int | None = None
    holder_task_id: str | None = None


@dataclasses.dataclass(slots=True)
class RequeueCounts:
    """What became of many dead letters: how many were requeued, and how many were left and why."""

    requeued: int = 0
    taken: int = 0
    busy: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of a request to cancel a job.

    ``outcome`` is ``cancelled``, ``absent`` (no such job), or the status of a job that does not wait: ``RUNNING``,
    ``DEAD``, ``DONE``, ``CANCELLED``.
    """

    job_id: int | None
    outcome: str
    task_id: str | None = None
    worker: str | None = None


def requeue(options: Options, job_ids: Iterable[int]) -> list[Requeued]:
    """Give dead letters another life, with no attempt counted.

    Args:
        options: Which server and schema.
        job_ids: The dead letters.

    Returns:
        What became of each, in the order in which they were given.
    """
    ids = list(dict.fromkeys(job_ids))
    found = {requeued.job_id: requeued for batch in _batches(ids) for requeued in _requeue_batch(options, batch)}
    return [found[job_id] for job_id in ids]


def requeue_matching(
    options: Options,
    *,
    queue: str | None = None,
    task: str | None = None,
    on_progress: Callable[[RequeueCounts], None] | None = None,
) -> RequeueCounts:
    """Requeue all dead letters of a queue, of a task (``*`` stands for any characters), or all there are.

    In batches; those that cannot be requeued are left and counted. What dies again meanwhile is not taken twice.

    Args:
        options: Which server and schema.
        queue: Only of this queue.
        task: Only of this task.
        on_progress: Called after each batch.
    """
    counts = RequeueCounts()
    dead = schema.jobs_dead
    last_id = 0
    while True:
        statement = select(dead.c.job_id).where(dead.c.job_id > last_id, *matching(dead, queue, task))
        batch = [row["job_id"] for row in fetch(options, statement.order_by(dead.c.job_id).limit(REQUEUE_BATCH))]
        if not batch:
            return counts
        for requeued in _requeue_batch(options, batch):
            counts.requeued += requeued.outcome == "requeued"
            counts.taken += requeued.outcome == "taken"
            counts.busy += requeued.outcome == "busy"
        last_id = batch[-1]
        if on_progress is not None:
            on_progress(counts)


def would_requeue(options: Options, *, queue: str | None = None, task: str | None = None) -> RequeueCounts:
    """What :func:`requeue_matching` would do now, as far as can be told without doing it."""
    dead, live = schema.jobs_dead, schema.jobs_live
    now = func.clock_timestamp()
    holder = exists().where(
        live.c.queue == dead.c.queue,
        live.c.dedupe_key == dead.c.dedupe_key,
        or_(live.c.status == "RUNNING", live.c.expires_at.is_(None), live.c.expires_at > now),
    )
    statement = select(func.count().label("taken")).select_from(dead).where(*matching(dead, queue, task), holder)
    taken = fetch(options, statement)[0]["taken"]
    return RequeueCounts(count_dead(options, queue=queue, task=task) - taken, taken)


def dead_ids(options: Options, job_or_task_id: str) -> list[int]:
    """Ids of the dead letters that an id of a job or a task means, the oldest first."""
    return _ids(options, schema.jobs_dead, job_or_task_id)


def cancel(options: Options, job_or_task_id: str) -> list[Cancelled]:
    """End waiting jobs as CANCELLED; Celery learns of it as revoked. Running ones are left alone.

    Returns:
        What became of each job that the id means; one with outcome ``absent`` if there is none.
    """
    pool, calls = pool_for(options), job_calls_for(options.schema)
    found: list[Cancelled] = []
    for job_id in _ids(options, schema.jobs, job_or_task_id) or _ids(options, schema.job_log, job_or_task_id):
        if pool.value(*calls.cancel(job_id, "REVOKED", "cancelled by an operator")) is not None:
            found.append(Cancelled(job_id, "cancelled"))
            continue
        log = schema.job_log.c
        rows = fetch(options, select(log.status, log.task_id, log.worker).where(log.job_id == job_id))
        if rows:
            found.append(Cancelled(job_id, rows[0]["status"], rows[0]["task_id"], rows[0]["worker"]))
    return found or [Cancelled(None, "absent")]


def pause(options: Options, queue: str) -> bool:
    """Let no more jobs of a queue be claimed; what workers hold already goes on.

    Returns:
        Whether that is new.

    Raises:
        PgBrokerError: The queue is unknown, or transient.
    """
    return _set_paused(options, queue, True)


def resume(options: Options, queue: str) -> bool:
    """Let jobs of a paused queue be claimed again, and wake all who wait for them; else as :func:`pause`."""
    return _set_paused(options, queue, False)


def reap(options: Options) -> Iterator[tuple[int, str]]:
    """Take back all jobs whose leases ran out; nothing while another process is at it.

    Yields:
        Id and new status of each.
    """
    while True:
        rows = pool_for(options).query(*store_for(options.schema).reap(REAP_BATCH))
        yield from ((row[0], row[1]) for row in rows)
        if len(rows) < REAP_BATCH:
            return


def prune(options: Options) -> Pruned:
    """End what has expired and delete what was kept long enough; see :class:`~pgbroker.queue.upkeep.Upkeep`."""
    return Upkeep(options).run_once()


def _batches(ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids), REQUEUE_BATCH):
        yield ids[start : start + REQUEUE_BATCH]


def _requeue_batch(options: Options, ids: list[int]) -> list[Requeued]:
    sql = (
        "select requeued_id, outcome, holder_job_id, holder_task_id "
        f"from {in_statement(options.schema)}.requeue_many(%s::bigint[], %s)"
    )
    return [Requeued(*row) for row in pool_for(options).query(sql, (ids, REQUEUE_WAIT_MS))]


def _ids(options: Options, table: Any, given: str) -> list[int]:
    """Ids of the jobs of a table that an id of a job or a task means."""
    if given.isascii() and given.isdecimal() and 0 < int(given) <= _BIGINT_MAX:
        found = fetch(options, select(table.c.job_id).where(table.c.job_id == int(given)))
        if found:
            return [row["job_id"] for row in found]
    statement = select(table.c.job_id).where(table.c.task_id == given).order_by(table.c.job_id)
    return [row["job_id"] for row in fetch(options, statement)]


def _set_paused(options: Options, queue: str, is_paused: bool) -> bool:
    sql = f"select {in_statement(options.schema)}.pause_queue(%s, %s)"
    outcome = pool_for(options).value(sql, (queue, is_paused))
    if outcome == "unknown":
        raise errors.PgBrokerError(f"no queue named {queue!r}; {nearest(queue, queue_names(options))}")
    if outcome == "transient":
        raise errors.PgBrokerError(
            f"queue {queue!r} is transient (exclusive, auto-delete or x-expires) and holds no jobs"
        )
    return bool(outcome == "changed")
