"""Commands for queues: ``queues``, ``pause``, ``resume``."""

from __future__ import annotations

import click

from pgbroker.cli.output import json_option, plural, print_json, print_table
from pgbroker.cli.target import options_of


@click.command()
@click.option("--all", "with_transient", is_flag=True, help="Also transient queues: replies, events, remote control.")
@json_option
@click.pass_context
def queues(ctx: click.Context, with_transient: bool, as_json: bool) -> None:
    """List queues with their jobs and consumers.

    LAG is the age of the oldest job that is ready. CONSUMERS are those of Celery workers.
    """
    from pgbroker.monitor import insight
    from pgbroker.monitor.durations import in_words

    found = insight.queues(options_of(ctx), with_transient=with_transient)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no queues yet")
        return
    heads = ("QUEUE", "KIND", "READY", "SCHEDULED", "RUNNING", "DEAD", "CONSUMERS", "LAG", "PAUSED")
    rows = [
        (
            queue.queue,
            queue.kind,
            queue.ready,
            queue.scheduled,
            queue.running,
            queue.dead,
            queue.consumers,
            in_words(queue.oldest_ready_seconds) if queue.oldest_ready_seconds else None,
            f"since {queue.paused_at:%Y-%m-%d %H:%M:%S}Z" if queue.paused_at else None,
        )
        for queue in found
    ]
    print_table(heads, rows)


@click.command()
@click.argument("queue")
@click.pass_context
def pause(ctx: click.Context, queue: str) -> None:
    """Let no more jobs of QUEUE be claimed; jobs that workers hold already go on. Publishing goes on too."""
    from pgbroker.monitor import admin, insight

    options = options_of(ctx)
    if not admin.pause(options, queue):
        click.echo(f"queue {queue!r} was paused already")
        return
    held = next((found.running for found in insight.queues(options) if found.queue == queue), 0)
    click.echo(f"paused queue {queue!r}" + (f"; {plural(held, 'job')} held by workers will go on" if held else ""))


@click.command()
@click.argument("queue")
@click.pass_context
def resume(ctx: click.Context, queue: str) -> None:
    """Let jobs of QUEUE be claimed again."""
    from pgbroker.monitor import admin

    changed = admin.resume(options_of(ctx), queue)
    click.echo(f"resumed queue {queue!r}" if changed else f"queue {queue!r} was not paused")
