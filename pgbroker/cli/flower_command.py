"""The command ``flower``: Flower's own command, with our views among its pages."""

from __future__ import annotations

import click

_INSTALL = "install the version that pgbroker is tested with: pip install 'pgbroker[flower]'"


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("flower_options", nargs=-1, type=click.UNPROCESSED, metavar="[FLOWER_OPTION]...")
@click.pass_context
def flower(ctx: click.Context, flower_options: tuple[str, ...]) -> None:
    """Run Flower, with its pages about the broker.

    All options are Flower's own, written --NAME=VALUE. Variables FLOWER_NAME and the file flowerconfig.py work, too.
    """
    try:
        from flower.command import flower as command
        from flower.views import BaseHandler
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] != "flower":
            raise
        raise click.UsageError(f"Flower is not installed; {_INSTALL}") from None
    if not hasattr(BaseHandler, "get_broker"):
        raise click.UsageError(f"this Flower is too old; {_INSTALL}")
    from pgbroker.monitor.flower import install

    install()
    # as a child of "celery" itself, whose options it knows and warns about where they stand behind "flower"
    command.invoke(command.make_context("flower", list(flower_options), parent=ctx.find_root()))
