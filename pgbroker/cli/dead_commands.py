"""Commands for dead letters: ``dead``, ``requeue``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgbroker.cli.main import EXIT_CHECK_FAILED
from pgbroker.cli.output import json_option, plural, print_json, print_table
from pgbroker.cli.target import options_of

if TYPE_CHECKING:
    from pgbroker.monitor.admin import RequeueCounts, Requeued
    from pgbroker.options import Options


@click.command()
@click.option("--queue", help="Of this queue.")
@click.option("--task", help="Of this task; * stands for any characters.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="So many at most.")
@json_option
@click.pass_context
def dead(ctx: click.Context, queue: str | None, task: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, those buried last first."""
    from pgbroker.monitor import insight

    options = options_of(ctx)
    found = insight.dead(options, queue=queue, task=task, limit=limit)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no dead letters")
        return
    heads = ("ID", "TASK", "QUEUE", "ATTEMPTS", "BURIED", "ERROR")
    names = ("job_id", "task_name", "queue", "attempts", "buried_at", "last_error")
    print_table(heads, [[row[name] for name in names] for row in found])
    count = insight.count_dead(options, queue=queue, task=task)
    if count > len(found):
        click.echo(f"({len(found)} of {count}; --limit shows more)")


@click.command()
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All dead letters.")
@click.option("--queue", help="All of this queue.")
@click.option("--task", help="All of this task; * stands for any characters.")
@click.option("--dry-run", is_flag=True, help="Change nothing, print how many it would be.")
@click.pass_context
def requeue(
    ctx: click.Context, job_ids: tuple[str, ...], is_all: bool, queue: str | None, task: str | None, dry_run: bool
) -> None:
    """Give dead letters another life: PENDING, with no attempt counted.

    ID is the id of a job or of a task. One whose dedupe key a live job holds is left as it is: named with its id,
    that is an error (exit code 1); of many, those are counted.
    """
    from pgbroker.monitor import admin

    has_filter = queue is not None or task is not None
    if job_ids and (is_all or has_filter):
        raise click.UsageError("give ids, or --all, --queue and --task, not both")
    if not (job_ids or is_all or has_filter):
        raise click.UsageError("give ids, or --queue or --task, or --all for all dead letters")
    options = options_of(ctx)
    if job_ids:
        if not _requeue_named(options, job_ids, dry_run=dry_run):
            ctx.exit(EXIT_CHECK_FAILED)
    elif dry_run:
        _say(admin.would_requeue(options, queue=queue, task=task), "would requeue")
    else:
        _say(admin.requeue_matching(options, queue=queue, task=task), "requeued")


def _requeue_named(options: Options, given: tuple[str, ...], *, dry_run: bool) -> bool:
    """Requeue by id; whether all went well."""
    from pgbroker.monitor import admin

    ids: list[int] = []
    unknown = []
    for text in given:
        found = admin.dead_ids(options, text)
        ids += found
        if not found:
            unknown.append(text)
    done = [] if dry_run else admin.requeue(options, ids)
    if dry_run:
        click.echo(f"would requeue {plural(len(ids), 'dead letter')}")
    for requeued in done:
        if requeued.outcome == "requeued":
            click.echo(f"job {requeued.job_id}: requeued")
        else:
            click.echo(f"Error: {_refusal(requeued)}", err=True)
    for text in unknown:
        click.echo(f"Error: no dead letter has the id {text!r}; see: celery -A APP pgbroker job {text}", err=True)
    return not unknown and all(requeued.outcome == "requeued" for requeued in done)


def _refusal(requeued: Requeued) -> str:
    if requeued.outcome == "taken":
        holder = f"job {requeued.holder_job_id} (task {requeued.holder_task_id})" if requeued.holder_job_id else "a job"
        return f"job {requeued.job_id} is not requeued: {holder} holds its dedupe key and has not ended"
    if requeued.outcome == "busy":
        return (
            f"job {requeued.job_id} is not requeued: an open transaction holds its dedupe key, or it is being requeued "
            "by somebody else; try again"
        )
    return f"job {requeued.job_id} is no dead letter any more"


def _say(counts: RequeueCounts, what: str) -> None:
    click.echo(f"{what} {plural(counts.requeued, 'dead letter')}")
    if counts.taken:
        click.echo(f"skipped {counts.taken}: a live job holds the dedupe key")
    if counts.busy:
        click.echo(f"skipped {counts.busy}: an open transaction holds the dedupe key; try again")
