"""Commands for what is kept and how long: ``settings``, ``prune``."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from pgbroker.cli.output import json_option, plural, print_json, print_table
from pgbroker.cli.target import options_of

if TYPE_CHECKING:
    from pgbroker.monitor.settings import SettingValue


@click.command()
@click.argument("name", required=False)
@click.argument("value", required=False)
@json_option
@click.pass_context
def settings(ctx: click.Context, name: str | None, value: str | None, as_json: bool) -> None:
    """Show all settings, or the one of a NAME, or give it a VALUE, for all processes from now on."""
    from pgbroker.monitor import settings as retention

    options = options_of(ctx)
    if name is not None and value is not None:
        found = retention.write_setting(options, name, value)
        if as_json:
            print_json(_flat(found))
        else:
            click.echo(f"{name} is now {_in_words(found.value)}")
        return
    shown = [_flat(one) for one in retention.read_settings(options)] + _of_celery(ctx)
    if name is not None:
        shown = [one for one in shown if one["name"] == name] or [_flat(retention.read_setting(options, name))]
    if as_json:
        print_json(shown if name is None else shown[0])
    else:
        print_table(
            ("NAME", "VALUE", "MEANING"), [(one["name"], _in_words(one["value"]), one["meaning"]) for one in shown]
        )


@click.command()
@json_option
@click.pass_context
def prune(ctx: click.Context, as_json: bool) -> None:
    """End jobs that expired and delete what was kept long enough: dead letters, history, events, results.

    Made to be run from cron; one process at a time works.
    """
    from pgbroker.monitor import admin

    pruned = admin.prune(options_of(ctx))
    if as_json:
        print_json(pruned)
        return
    click.echo(f"cancelled {plural(pruned.expired, 'expired job')}")
    click.echo(f"deleted {plural(pruned.dead, 'dead letter')}, {plural(pruned.events, 'event')} of jobs that are gone")
    busy = f"; {pruned.history_days_busy} more in use, left for the next run" if pruned.history_days_busy else ""
    click.echo(f"emptied {plural(pruned.history_days, 'day')} of history{busy}")
    transient = plural(pruned.transient_queues, "transient queue")
    click.echo(f"deleted {plural(pruned.results, 'expired result')}, {transient} of processes that are gone")
    if not pruned.is_leader:
        click.echo("another process is pruning; the rest is left to it")


def _flat(one: SettingValue) -> dict[str, Any]:
    setting = one.setting
    return {
        "name": setting.name,
        "value": one.value,
        "default": setting.default,
        "least": setting.least,
        "most": setting.most,
        "unit": setting.unit,
        "meaning": setting.meaning,
    }


def _of_celery(ctx: click.Context) -> list[dict[str, Any]]:
    """What the application's configuration says of retention."""
    expires = ctx.obj.app.conf.result_expires
    if isinstance(expires, dt.timedelta):
        expires = int(expires.total_seconds())
    meaning = "how long results are kept (Celery's own setting: change it in the application's configuration)"
    return [{"name": "result_expires", "value": expires or None, "unit": "s", "meaning": meaning}]


def _in_words(seconds: float | None) -> str:
    from pgbroker.monitor.durations import in_words

    if not isinstance(seconds, int | float):
        return "for ever"
    return f"{seconds:.15g} s" + (f" ({in_words(seconds)})" if seconds >= 60 else "")
