"""Commands for workers: ``workers``, ``reap``."""

from __future__ import annotations

import click

from pgbroker.cli.output import json_option, plural, print_json, print_table
from pgbroker.cli.target import options_of


@click.command()
@json_option
@click.pass_context
def workers(ctx: click.Context, as_json: bool) -> None:
    """List processes that consume from queues or hold jobs.

    HELD jobs are claimed by the process, STARTED ones of them have begun, as far as it tells. LEASE is the time until
    the first of its leases ends; a worker that lives renews it long before.
    """
    from pgbroker.monitor import insight
    from pgbroker.monitor.durations import in_words

    found = insight.workers(options_of(ctx))
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no workers")
        return
    rows = []
    for worker in found:
        lease = None
        if worker.lease_seconds is not None:
            lease = in_words(worker.lease_seconds) + (" ago, lost" if worker.lease_seconds < 0 else "")
        rows.append(
            (worker.worker, worker.host, worker.pid, worker.running, worker.started, lease, worker.queues or None)
        )
    print_table(("WORKER", "HOST", "PID", "HELD", "STARTED", "LEASE", "QUEUES"), rows)


@click.command()
@click.pass_context
def reap(ctx: click.Context) -> None:
    """Take back now what lies under leases that ran out; workers do the same from time to time."""
    from pgbroker.monitor import admin

    count = 0
    for job_id, status in admin.reap(options_of(ctx)):
        click.echo(f"job {job_id}: taken back, now {status}")
        count += 1
    click.echo(f"took back {plural(count, 'job')}")
