"""The whole story of one job: its row, what happened to it, its result, and what bears on why it does not run."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json

from sqlalchemy import ColumnElement, and_, func, literal, or_, select

from pgbroker import errors
from pgbroker.monitor.diagnosis import AHEAD_MAX, Surroundings, explain
from pgbroker.monitor.insight import Row, fetch
from pgbroker.options import Options
from pgbroker.postgres import schema

#: What Celery writes into a task's headers that helps to understand it; ``argsrepr`` and ``kwargsrepr`` are what the
#: publisher wants to be seen of the arguments (``apply_async(argsrepr=...)`` hides secrets).
_HEADERS = ("argsrepr", "kwargsrepr", "retries", "eta", "origin", "root_id", "parent_id", "group", "timelimit")

_BIGINT_MAX = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """What is known of one job.

    Args:
        duplicate_id: The task id that was asked for, if its publish was a duplicate of this job's task; else ``None``.
        job: All its columns but the body, whose length stands in ``body_bytes``; a finished job has fewer.
        why: Why it does not run, or what it is doing, or how it ended: one sentence each, the decisive one first.
        headers: What its publisher said of it.
        events: What went wrong on the way, in order.
        result: State of its task's result in our result backend, without the value; ``None`` if there is none.
        other_runs: Other jobs of the same task id (retries, replacements), the newest first. Finished ones are looked
            for only where the story was asked for by task id, because history has no index on it.
        asked_at: The server's time.
    """

    duplicate_id: str | None
    job: Row
    why: list[str]
    headers: Row
    events: list[Row]
    result: Row | None
    other_runs: list[Row]
    asked_at: dt.datetime


def job_story(options: Options, job_or_task_id: str) -> JobStory:
    """Tell the story of a job.

    Args:
        options: Which server and schema.
        job_or_task_id: Id of the job or of its task; of several jobs of a task, the newest one's story is told. Of a
            task that was a duplicate there is no job: it is that of the job which was live then.

    Raises:
        PgBrokerError: There is no such job.
    """
    task_id, runs = _follow(options, job_or_task_id)
    if not runs:
        if task_id == job_or_task_id:
            what = f"no job and no task has the id {job_or_task_id!r}: never published here, or"
        else:
            what = f"task {job_or_task_id!r} was a duplicate of task {task_id!r}, which"
        raise errors.PgBrokerError(
            f"{what} ended so long ago that its history is over (celery -A APP pgbroker settings history_seconds)"
        )
    job, *other_runs = runs
    asked_at = job.pop("asked_at")
    if job["status"] in ("PENDING", "RUNNING", "DEAD") and job["task_id"]:
        same = schema.jobs.c.task_id == job["task_id"]
        known = {run["job_id"] for run in runs}
        other_runs += [run for run in _stored(options, same) if run["job_id"] not in known]
    result = _result(options, job["task_id"]) if job["task_id"] else None
    return JobStory(
        duplicate_id=None if task_id == job_or_task_id else job_or_task_id,
        job={name: value for name, value in job.items() if name not in ("headers", "properties")},
        why=explain(job, _surroundings(options, job, asked_at)),
        headers=_readable(job.get("headers")),
        events=_events(options, job["job_id"]),
        result=result,
        other_runs=[_short(run) for run in other_runs],
        asked_at=asked_at,
    )


def _follow(options: Options, given: str) -> tuple[str, list[Row]]:
    """The id, or the task of which it was a duplicate, whose jobs are found, and these, the newest first."""
    alias = schema.aliases.c
    seen: list[str] = []
    while True:
        seen.append(given)
        runs = _find(options, given)
        if runs:
            return given, runs
        statement = select(alias.leads_to).where(alias.task_id == given).order_by(alias.alias_id.desc()).limit(1)
        found = fetch(options, statement)
        if not found or found[0]["leads_to"] in seen:
            return given, []
        given = found[0]["leads_to"]


def _find(options: Options, given: str) -> list[Row]:
    """Jobs of that id, else of that task id, the newest first."""
    if given.isascii() and given.isdecimal() and 0 < int(given) <= _BIGINT_MAX:
        found = _stored(options, schema.jobs.c.job_id == int(given)) or _finished(
            options, schema.job_log.c.job_id == int(given)
        )
        if found:
            return found
    found = _stored(options, schema.jobs.c.task_id == given)
    found += _finished(options, schema.job_log.c.task_id == given)
    return found


def _stored(options: Options, condition: ColumnElement[bool]) -> list[Row]:
    table = schema.jobs
    columns = [column for column in table.c if column.name != "body"]
    statement = select(
        *columns, func.octet_length(table.c.body).label("body_bytes"), func.clock_timestamp().label("asked_at")
    )
    return fetch(options, statement.where(condition).order_by(table.c.job_id.desc()))


def _finished(options: Options, condition: ColumnElement[bool]) -> list[Row]:
    """Finished jobs that history still shows."""
    log = schema.job_log
    columns = [column for column in log.c if column.name in schema.job_history.c]
    statement = select(*columns, func.clock_timestamp().label("asked_at"))
    statement = statement.where(condition, log.c.status.in_(["DONE", "CANCELLED"]))
    return fetch(options, statement.order_by(log.c.job_id.desc()))


def _events(options: Options, job_id: int) -> list[Row]:
    event = schema.job_events.c
    columns = (event.happened_at, event.kind, event.attempts, event.worker, event.detail)
    return fetch(options, select(*columns).where(event.job_id == job_id).order_by(event.event_id))


def _result(options: Options, task_id: str) -> Row | None:
    result = schema.results.c
    statement = select(result.status, result.stored_at, result.expires_at).where(
        result.task_id == task_id, or_(result.expires_at.is_(None), result.expires_at > func.clock_timestamp())
    )
    rows = fetch(options, statement)
    return rows[0] if rows else None


def _surroundings(options: Options, job: Row, now: dt.datetime) -> Surroundings:
    if job["status"] == "DEAD" and job["dedupe_key"] is not None:
        return Surroundings(now=now, key_holder=_key_holder(options, job, now))
    if job["status"] != "PENDING":
        return Surroundings(now=now)
    live, consumer = schema.jobs_live.c, schema.consumers.c
    here = live.queue == job["queue"]
    ready = and_(
        here,
        live.status == "PENDING",
        live.run_after <= now,
        or_(live.expires_at.is_(None), live.expires_at > now),
    )
    facts = {
        "paused_at": select(schema.queues.c.paused_at).where(schema.queues.c.name == job["queue"]),
        "consumers": select(func.count()).where(consumer.queue == job["queue"], consumer.lives_until > now),
        "sleepers": select(func.count()).where(schema.sleepers.c.queue == job["queue"], schema.sleepers.c.until > now),
        "running": select(func.count()).where(here, live.status == "RUNNING"),
        "oldest_ready_at": select(func.min(func.greatest(live.run_after, live.enqueued_at))).where(ready),
        "ahead": select(func.count()).select_from(
            select(literal(1)).where(ready, _goes_before(options, job)).limit(AHEAD_MAX + 1).subquery()
        ),
    }
    found = fetch(options, select(*(query.scalar_subquery().label(name) for name, query in facts.items())))[0]
    served = select(consumer.queue).where(consumer.lives_until > now).distinct().order_by(consumer.queue)
    job_queues = served.where(consumer.queue.not_in(select(schema.transient_queues.c.name)))
    return Surroundings(now=now, served_queues=tuple(row["queue"] for row in fetch(options, job_queues)), **found)


def _goes_before(options: Options, job: Row) -> ColumnElement[bool]:
    """Whether a ready job is claimed before this one."""
    live = schema.jobs_live.c
    is_low_first = options.priority_order == "low_first"
    return or_(
        live.priority < job["priority"] if is_low_first else live.priority > job["priority"],
        and_(
            live.priority == job["priority"],
            or_(
                live.run_after < job["run_after"],
                and_(live.run_after == job["run_after"], live.job_id < job["job_id"]),
            ),
        ),
    )


def _key_holder(options: Options, job: Row, now: dt.datetime) -> int | None:
    live = schema.jobs_live.c
    statement = select(live.job_id).where(
        live.queue == job["queue"],
        live.dedupe_key == job["dedupe_key"],
        or_(live.status == "RUNNING", live.expires_at.is_(None), live.expires_at > now),
    )
    rows = fetch(options, statement)
    return rows[0]["job_id"] if rows else None


def _readable(headers: str | None) -> Row:
    try:
        given = json.loads(headers or "{}")
    except ValueError:
        return {}
    if not isinstance(given, dict):
        return {}
    return {name: given[name] for name in _HEADERS if given.get(name) not in (None, [None, None])}


def _short(run: Row) -> Row:
    names = ("job_id", "status", "result_state", "queue", "attempts", "enqueued_at", "finished_at", "buried_at")
    return {name: run[name] for name in names if run.get(name) is not None}
