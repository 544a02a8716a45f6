"""Commands for jobs: ``jobs``, ``job``, ``cancel``."""

from __future__ import annotations

import click

from pgbroker.cli.job_page import print_story
from pgbroker.cli.main import EXIT_CHECK_FAILED
from pgbroker.cli.output import json_option, print_json, print_table
from pgbroker.cli.target import options_of
from pgbroker.model import JobStatus


@click.command()
@click.option(
    "--status", type=click.Choice([status.value for status in JobStatus], case_sensitive=False), help="In this state."
)
@click.option("--queue", help="Of this queue.")
@click.option("--task", help="Of this task; * stands for any characters.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="So many at most.")
@json_option
@click.pass_context
def jobs(
    ctx: click.Context, status: str | None, queue: str | None, task: str | None, limit: int, as_json: bool
) -> None:
    """List jobs, the newest first: live, dead, and finished ones while history lasts."""
    from pgbroker.monitor import insight

    found = insight.jobs(options_of(ctx), status=status, queue=queue, task=task, limit=limit)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no such jobs")
        return
    heads = ("ID", "STATUS", "TASK", "QUEUE", "PRIORITY", "ATTEMPTS", "ENQUEUED", "RUN AFTER", "ERROR")
    names = ("job_id", "status", "task_name", "queue", "priority", "attempts", "enqueued_at", "run_after", "last_error")
    print_table(heads, [[row[name] for name in names] for row in found])


@click.command()
@click.argument("job_id", metavar="ID")
@json_option
@click.pass_context
def job(ctx: click.Context, job_id: str, as_json: bool) -> None:
    """Tell the whole story of a job, and why it does not run.

    ID is the id of a job or of a task; of several jobs of a task it is the newest one.
    """
    from pgbroker.monitor.story import job_story

    story = job_story(options_of(ctx), job_id)
    if as_json:
        print_json(story)
    else:
        print_story(story)


@click.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.pass_context
def cancel(ctx: click.Context, job_ids: tuple[str, ...]) -> None:
    """End jobs that wait, as CANCELLED. ID is the id of a job or of a task.

    Exit code 1 if one of them could not be cancelled.
    """
    from pgbroker.monitor import admin

    options = options_of(ctx)
    failed = False
    for given in job_ids:
        for done in admin.cancel(options, given):
            if done.outcome == "cancelled":
                click.echo(f"job {done.job_id}: cancelled")
                continue
            failed = True
            click.echo(f"Error: {_refusal(given, done)}", err=True)
    if failed:
        ctx.exit(EXIT_CHECK_FAILED)


def _refusal(given: str, done: object) -> str:
    from pgbroker.monitor.admin import Cancelled

    assert isinstance(done, Cancelled)
    if done.outcome == "absent":
        return f"no job and no task has the id {given!r}"
    if done.outcome == JobStatus.RUNNING:
        text = f"job {done.job_id} is held by worker {done.worker} and is not cancelled"
        if done.task_id is None:
            return text
        return (
            f"{text}; revoke it with terminate (app.control.revoke(id, terminate=True)), or on the command line: "
            f"celery -A APP control terminate SIGTERM {done.task_id}"
        )
    if done.outcome == JobStatus.DEAD:
        return f"job {done.job_id} is dead and does not wait; it goes away after dead_seconds"
    return f"job {done.job_id} has ended already ({done.outcome})"
