"""What is going on: queues, jobs, dead letters, workers. Reads only.

Ages and what is due are reckoned by the server's clock. Times are timezone-aware, in UTC.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, func, select

from pgbroker.model import JobStatus
from pgbroker.options import Options
from pgbroker.postgres import schema
from pgbroker.postgres.pool import pool_for
from pgbroker.queue.job_calls import job_calls_for, queue_stats

Row = dict[str, Any]
"""One row, by column name."""

#: A worker process as the broker names it: host, pid, and what makes it unique.
_WORKER = re.compile(r"(?P<host>.+):(?P<pid>\d+):[0-9a-f]{12}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """One queue. ``kind`` is ``job`` or ``transient``; the messages of a transient one all count as ready.

    ``oldest_ready_seconds`` is the lag: the age of the oldest ready job, 0 if none is ready. ``consumers`` are
    Celery's; a program that claims jobs by itself is none.
    """

    queue: str
    kind: str
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    dead: int = 0
    oldest_ready_seconds: float = 0.0
    consumers: int = 0
    paused_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOverview:
    """One process that consumes from queues or holds jobs.

    ``host`` and ``pid`` are ``None`` for a program that claims jobs under a name of its own. ``running`` are the jobs
    that it holds, ``started`` those of them whose task has begun, as far as it tells. ``oldest_lease_until`` is the
    lease that ends first, ``lease_seconds`` the time until then (negative: it ran out). ``alive_until`` is its last
    sign of life as a consumer plus the time for which that counts.
    """

    worker: str
    host: str | None
    pid: int | None
    queues: tuple[str, ...] = ()
    running: int = 0
    started: int = 0
    oldest_lease_until: dt.datetime | None = None
    lease_seconds: float | None = None
    alive_until: dt.datetime | None = None


def queues(options: Options, *, with_transient: bool = False) -> list[QueueOverview]:
    """All queues that are declared or hold jobs, by name; transient ones (replies, events, control) on demand."""
    counted = [queue_stats(row) for row in pool_for(options).query(*job_calls_for(options.schema).stats())]
    paused = {row["name"]: row["paused_at"] for row in fetch(options, select(schema.queues).where(_paused()))}
    consumers = _consumers(options)
    found = [
        QueueOverview(
            kind="job",
            consumers=consumers.get(stats.queue, 0),
            paused_at=paused.get(stats.queue),
            **dataclasses.asdict(stats),
        )
        for stats in counted
    ]
    if not with_transient:
        return found
    mail = schema.mailbox.c
    count = select(func.count()).where(mail.queue == schema.transient_queues.c.name).scalar_subquery()
    rows = fetch(options, select(schema.transient_queues.c.name, count.label("ready")).order_by("name"))
    return found + [
        QueueOverview(queue=row["name"], kind="transient", ready=row["ready"], consumers=consumers.get(row["name"], 0))
        for row in rows
    ]


def queue_names(options: Options) -> list[str]:
    """Names of the queues that hold jobs or may, sorted."""
    return [found.queue for found in queues(options)]


def jobs(
    options: Options,
    *,
    status: str | None = None,
    queue: str | None = None,
    task: str | None = None,
    limit: int = 50,
) -> list[Row]:
    """Jobs of the view ``job_log``: live, dead, and finished ones while history lasts; the newest first.

    Args:
        options: Which server and schema.
        status: Only jobs in this state.
        queue: Only jobs of this queue.
        task: Only jobs of this task; ``*`` stands for any characters.
        limit: How many at most.
    """
    log = schema.job_log
    statement = select(log).where(*matching(log, queue, task)).order_by(log.c.job_id.desc()).limit(limit)
    if status is not None:
        statement = statement.where(log.c.status == JobStatus(status).value)
    return fetch(options, statement)


def dead(options: Options, *, queue: str | None = None, task: str | None = None, limit: int = 50) -> list[Row]:
    """Dead letters, those buried last first; arguments as for :func:`jobs`."""
    table = schema.jobs_dead
    columns = [table.c[column.name] for column in schema.job_log.c if column.name in table.c]
    statement = select(*columns, table.c.buried_at).where(*matching(table, queue, task))
    return fetch(options, statement.order_by(table.c.buried_at.desc(), table.c.job_id.desc()).limit(limit))


def count_dead(options: Options, *, queue: str | None = None, task: str | None = None) -> int:
    """How many dead letters there are; arguments as for :func:`jobs`."""
    table = schema.jobs_dead
    statement = select(func.count().label("dead")).select_from(table).where(*matching(table, queue, task))
    return int(fetch(options, statement)[0]["dead"])


def workers(options: Options) -> list[WorkerOverview]:
    """Processes that consume from queues, and processes that hold jobs, by name."""
    consumer, job = schema.consumers.c, schema.jobs_live.c
    living = fetch(
        options,
        select(
            consumer.worker,
            func.array_agg(consumer.queue.distinct()).label("queues"),
            func.max(consumer.lives_until).label("alive_until"),
        )
        .where(consumer.lives_until > func.clock_timestamp())
        .group_by(consumer.worker),
    )
    holding = fetch(
        options,
        select(
            job.worker,
            func.count().label("running"),
            func.count(job.started_at).label("started"),
            func.min(job.lease_until).label("oldest_lease_until"),
            func.extract("epoch", func.min(job.lease_until) - func.clock_timestamp()).label("lease_seconds"),
        )
        .where(job.status == "RUNNING")
        .group_by(job.worker),
    )
    facts: dict[str, Row] = {}
    for row in living + holding:
        facts.setdefault(row["worker"], {}).update(row)
    return [_worker(facts[name]) for name in sorted(facts)]


def _worker(facts: Row) -> WorkerOverview:
    host, pid = host_and_pid(facts["worker"])
    lease_seconds = facts.pop("lease_seconds", None)
    return WorkerOverview(
        host=host,
        pid=pid,
        queues=tuple(sorted(facts.pop("queues", ()))),
        lease_seconds=None if lease_seconds is None else float(lease_seconds),
        **facts,
    )


def host_and_pid(worker: str) -> tuple[str | None, int | None]:
    """Host and process id in the name of a worker process, ``None`` where it is a name of another kind."""
    found = _WORKER.fullmatch(worker)
    return (found["host"], int(found["pid"])) if found else (None, None)


def matching(table: FromClause, queue: str | None, task: str | None) -> list[ColumnElement[bool]]:
    """Conditions for a queue's name and a task's name, in which ``*`` stands for any characters."""
    conditions: list[ColumnElement[bool]] = []
    if queue is not None:
        conditions.append(table.c.queue == queue)
    if task is not None and "*" in task:
        pattern = re.sub(r"([\\%_])", r"\\\1", task).replace("*", "%")
        conditions.append(table.c.task_name.like(pattern))
    elif task is not None:
        conditions.append(table.c.task_name == task)
    return conditions


def fetch(options: Options, statement: Select[Any]) -> list[Row]:
    """The rows of a query, by column name, times in UTC."""
    names = [str(column.key) for column in statement.selected_columns]
    rows = pool_for(options).query(*schema.compiled(statement, options.schema))
    return [{name: _in_utc(value) for name, value in zip(names, row, strict=True)} for row in rows]


def _in_utc(value: Any) -> Any:
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def _paused() -> ColumnElement[bool]:
    return schema.queues.c.paused_at.is_not(None)


def _consumers(options: Options) -> dict[str, int]:
    consumer = schema.consumers.c
    statement = select(consumer.queue, func.count().label("consumers")).group_by(consumer.queue)
    rows = fetch(options, statement.where(consumer.lives_until > func.clock_timestamp()))
    return {row["queue"]: row["consumers"] for row in rows}
