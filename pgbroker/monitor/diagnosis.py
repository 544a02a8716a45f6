"""Why a job does not run: from its row and what surrounds it to sentences that an operator can act on."""

from __future__ import annotations

import dataclasses
import datetime as dt
import shlex
from collections.abc import Iterator
from typing import Any

from pgbroker.monitor.durations import in_words

#: Jobs ahead of one are counted up to this number.
AHEAD_MAX = 100_000

_COMMAND = "celery -A APP pgbroker"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What bears on a job beside its own row; for a job that does not wait most of it is left out.

    Args:
        now: The server's time.
        paused_at: Since when its queue is paused.
        consumers: Celery consumers of its queue.
        sleepers: Processes that sleep until a job comes into its queue, Celery's or others.
        running: Jobs of its queue that are held by workers.
        ahead: Ready jobs of its queue that go before it, counted up to :data:`AHEAD_MAX` and one more.
        oldest_ready_at: When the oldest ready job of its queue became ready.
        served_queues: Queues that have Celery consumers.
        key_holder: For a dead letter: the live job that holds its dedupe key.
    """

    now: dt.datetime
    paused_at: dt.datetime | None = None
    consumers: int = 0
    sleepers: int = 0
    running: int = 0
    ahead: int = 0
    oldest_ready_at: dt.datetime | None = None
    served_queues: tuple[str, ...] = ()
    key_holder: int | None = None


def explain(job: dict[str, Any], around: Surroundings) -> list[str]:
    """Sentences on why the job does not run, what it is doing, or how it ended; the decisive one first.

    Args:
        job: Its columns.
        around: What surrounds it.
    """
    tell = {"PENDING": _pending, "RUNNING": _running, "DEAD": _dead}.get(job["status"], _finished)
    return list(tell(job, around))


def first_line(text: str | None) -> str:
    """The first line of an error that says something; an empty text for none."""
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), "")


def _pending(job: dict[str, Any], around: Surroundings) -> Iterator[str]:
    now, queue = around.now, job["queue"]
    if job["expires_at"] is not None and job["expires_at"] <= now:
        ago = in_words(now - job["expires_at"])
        yield f"expired {ago} ago and is never claimed; ended as CANCELLED by the next: {_COMMAND} prune"
        return
    if around.paused_at is not None:
        yield (
            f"queue {queue!r} has been paused for {in_words(now - around.paused_at)}; "
            f"resume it with: {_COMMAND} resume {shlex.quote(queue)}"
        )
    if job["run_after"] > now:
        yield f"{_what_it_waits_for(job)} in {in_words(job['run_after'] - now)}, at {job['run_after']:%F %T}Z"
    if not around.consumers and not around.sleepers:
        if around.running:
            yield (
                f"no Celery worker consumes from queue {queue!r} now, though {around.running} of its jobs are held; "
                f"see: {_COMMAND} workers"
            )
        else:
            served = ", ".join(around.served_queues[:8]) + (" ..." if len(around.served_queues) > 8 else "")
            yield (
                f"no consumer on queue {queue!r}; "
                + (f"workers consume from: {served}" if served else "no worker is up at all")
            )
    if job["run_after"] <= now:
        yield _place_in_queue(around)
    if job["expires_at"] is not None:
        left = in_words(job["expires_at"] - now)
        yield f"expires in {left}, at {job['expires_at']:%F %T}Z, if nobody claims it before"


def _what_it_waits_for(job: dict[str, Any]) -> str:
    if job["losses"]:
        return f"waits for its next attempt (lost or failed {job['losses']} of {job['max_attempts']} times), due"
    return "put back, waits to be due" if job["requeues"] else "waits for its ETA"


def _place_in_queue(around: Surroundings) -> str:
    is_served = around.paused_at is None and (around.consumers or around.sleepers)
    busy = f"{around.consumers} consumer{'' if around.consumers == 1 else 's'}, {around.running} held by workers"
    if not around.ahead:
        if not is_served:
            return "ready and first in line"
        return f"ready and first in line: claimed as soon as a worker has room ({busy})"
    count = f"more than {AHEAD_MAX}" if around.ahead > AHEAD_MAX else str(around.ahead)
    other = "other" if around.ahead == 1 else "others"
    oldest = ""
    if around.oldest_ready_at is not None:
        oldest = f", the oldest ready for {in_words(around.now - around.oldest_ready_at)}"
    return f"ready, behind {count} {other}{oldest}" + (f" ({busy})" if is_served else "")


def _running(job: dict[str, Any], around: Surroundings) -> Iterator[str]:
    now, worker = around.now, job["worker"]
    left = job["lease_until"] - now
    if left > dt.timedelta(0):
        until = f"{job['lease_until']:%F %T}Z, for {in_words(left)} more"
        yield f"held by worker {worker}, lease until {until} (renewed while the worker lives)"
    else:
        yield (
            f"held by worker {worker}, whose lease ran out {in_words(left)} ago: lost; "
            f"any worker takes it back soon, or now: {_COMMAND} reap"
        )
    if job["ack_mode"] == "REPORTED":
        yield f"claimed {in_words(now - job['claimed_at'])} ago, not started: waits in the worker for a free process"
    elif job["started_at"] is not None:
        yield f"started {in_words(now - job['started_at'])} ago, attempt {job['attempts']}"
    else:
        yield f"claimed {in_words(now - job['claimed_at'])} ago, attempt {job['attempts']}"
    if job["ack_mode"] == "EARLY":
        yield "acknowledged early: if its worker is lost it is not run again and goes to the dead letters"
    elif job["ack_mode"] != "REPORTED":
        yield "acknowledged late: if its worker is lost it is run again"


def _dead(job: dict[str, Any], around: Surroundings) -> Iterator[str]:
    reason = first_line(job["last_error"])
    yield f"dead for {in_words(around.now - job['buried_at'])}: {reason}"
    if around.key_holder is not None:
        yield (
            f"its dedupe key is held by job {around.key_holder}, so it cannot be requeued before that one ends; "
            f"see: {_COMMAND} job {around.key_holder}"
        )
    else:
        yield f"requeue with: {_COMMAND} requeue {job['job_id']}"


def _finished(job: dict[str, Any], around: Surroundings) -> Iterator[str]:
    ago = in_words(around.now - job["finished_at"])
    began = job["started_at"] or job["claimed_at"]
    took = f", after {in_words(job['finished_at'] - began)}" if began is not None else ""
    state = f" ({job['result_state']})" if job["result_state"] else ""
    if job["status"] == "CANCELLED":
        reason = first_line(job["last_error"])
        yield f"cancelled {ago} ago{state}" + (f": {reason}" if reason else "")
    elif job["result_state"] == "RETRY":
        yield f"handed on {ago} ago{took} (RETRY): a newer job of the same task goes on"
    else:
        yield f"ended {ago} ago{took}{state}"
