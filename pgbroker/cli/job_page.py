"""One job's story as a page of text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pgbroker.cli.output import cell, moment
from pgbroker.monitor.durations import in_words

if TYPE_CHECKING:
    from pgbroker.monitor.story import JobStory

_COLOURS = {"DEAD": "red", "RUNNING": "green", "PENDING": "yellow"}
_LABEL_WIDTH = 13


def print_story(story: JobStory) -> None:
    """Print what a job is, why it does not run, its columns, its error in full, its events."""
    job = story.job
    if story.duplicate_id is not None:
        click.echo(
            f"task {cell(story.duplicate_id)} was a duplicate of task {cell(job['task_id'])}: its result is this one's"
        )
    status = click.style(job["status"], fg=_COLOURS.get(job["status"]), bold=True)
    click.echo(f"job {job['job_id']}  {cell(job['task_name'])}  {status}")
    for sentence in story.why:
        click.echo(f"  {cell(sentence)}")
    click.echo()
    for label, text in _facts(story):
        click.echo(f"{label:{_LABEL_WIDTH}} {text}")
    if job["last_error"]:
        click.echo("\nreason" if job["status"] == "CANCELLED" else "\nlast error")
        click.echo("".join(f"    {_printable(line)}\n" for line in job["last_error"].splitlines()), nl=False)
    if story.events:
        click.echo("\nevents")
        for event in story.events:
            worker = f" on {event['worker']}" if event["worker"] else ""
            click.echo(
                f"    {moment(event['happened_at'])}  {event['kind']} after attempt {event['attempts']}{worker}"
                f"\n        {cell(event['detail'])}"
            )
    if story.other_runs:
        click.echo("\nother jobs of the same task")
        for run in story.other_runs:
            state = f" ({run['result_state']})" if run.get("result_state") else ""
            click.echo(f"    job {run['job_id']}  {run['status']}{state}  enqueued {moment(run['enqueued_at'])}")


def _facts(story: JobStory) -> Iterator[tuple[str, str]]:
    job, headers, now = story.job, story.headers, story.asked_at
    yield "task id", cell(job["task_id"])
    yield "queue", f"{cell(job['queue'])}, priority {job['priority']}"
    if job.get("exchange") or job.get("routing_key"):
        yield "published to", f"exchange {job['exchange'] or ''!r}, routing key {job['routing_key'] or ''!r}"
    arguments = " ".join(cell(headers[name]) for name in ("argsrepr", "kwargsrepr") if name in headers)
    if arguments:
        yield "arguments", arguments
    if "body_bytes" in job:
        yield "body", f"{job['body_bytes']} bytes, {cell(job['content_type'])}, {cell(job['content_encoding'])}"
    yield "attempts", _attempts(job, headers)
    if job["dedupe_key"] is not None:
        yield "dedupe key", cell(job["dedupe_key"])
    for label, name in (
        ("enqueued", "enqueued_at"),
        ("run after", "run_after"),
        ("expires", "expires_at"),
        ("claimed", "claimed_at"),
        ("started", "started_at"),
        ("lease until", "lease_until"),
        ("buried", "buried_at"),
        ("finished", "finished_at"),
    ):
        if job.get(name) is not None:
            yield label, _with_distance(job[name], now)
    if job["worker"]:
        yield "worker", _worker(job["worker"])
    if job.get("claim") is not None:
        yield "claim", f"{job['claim']}, ack mode {job['ack_mode']}"
    if job.get("result_state"):
        yield "end", job["result_state"]
    if job.get("result") is not None:
        yield "result", cell(job["result"])
    if story.result is not None:
        kept = story.result["expires_at"]
        until = f", kept until {moment(kept)}" if kept else ", kept for ever"
        yield "task result", f"{story.result['status']}, stored {_with_distance(story.result['stored_at'], now)}{until}"
    for name in ("origin", "parent_id", "root_id", "group"):
        if name in headers and headers[name] != job["task_id"]:
            yield name.replace("_", " "), cell(headers[name])


def _attempts(job: dict[str, Any], headers: dict[str, Any]) -> str:
    text = str(job["attempts"])
    if job.get("losses"):
        text += f", lost or failed {job['losses']} of {job['max_attempts']} times"
    if job.get("requeues"):
        text += f", put back {job['requeues']} times"
    if headers.get("retries"):
        text += f", Celery retry {headers['retries']}"
    return text


def _with_distance(time: dt.datetime, now: dt.datetime) -> str:
    distance = f"{in_words(now - time)} ago" if time <= now else f"in {in_words(time - now)}"
    return f"{moment(time)} ({distance})"


def _worker(worker: str) -> str:
    from pgbroker.monitor.insight import host_and_pid

    host, pid = host_and_pid(worker)
    return f"{cell(worker)} (host {host}, pid {pid})" if host else cell(worker)


def _printable(line: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in line)
