"""The group ``pgbroker`` of Celery's command line.

Every ``celery`` command imports this module at its start, so it imports nothing but click; a command's own module is
imported when the command, or the help that lists it, is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

#: Where each command lives. A family of commands shares a module.
_COMMANDS = {
    "cancel": "pgbroker.cli.job_commands",
    "check": "pgbroker.cli.schema_commands",
    "dead": "pgbroker.cli.dead_commands",
    "flower": "pgbroker.cli.flower_command",
    "job": "pgbroker.cli.job_commands",
    "jobs": "pgbroker.cli.job_commands",
    "migrate": "pgbroker.cli.schema_commands",
    "pause": "pgbroker.cli.queue_commands",
    "prune": "pgbroker.cli.retention_commands",
    "queues": "pgbroker.cli.queue_commands",
    "reap": "pgbroker.cli.worker_commands",
    "requeue": "pgbroker.cli.dead_commands",
    "resume": "pgbroker.cli.queue_commands",
    "settings": "pgbroker.cli.retention_commands",
    "workers": "pgbroker.cli.worker_commands",
}

EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 69


class LazyGroup(click.Group):
    """A group that imports its commands when they are needed and turns pgbroker's errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, sorted."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command: the function of its name in its module."""
        home = _COMMANDS.get(cmd_name)
        if home is None:
            return None
        command = getattr(import_module(home), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of pgbroker's is one message on stderr, without a traceback."""
        from pgbroker import errors

        try:
            return super().invoke(ctx)
        except errors.PgBrokerError as exc:
            click.echo(f"Error: {exc}", err=True)
            if isinstance(exc, errors.DatabaseUnreachable | errors.EmbeddedUnavailable):
                ctx.exit(EXIT_UNREACHABLE)
            ctx.exit(EXIT_USAGE if isinstance(exc, errors.OptionError) else EXIT_CHECK_FAILED)


@click.group(cls=LazyGroup)
def pgbroker() -> None:
    """Look after the Postgres broker: its schema, queues, jobs and workers.

    Exit codes: 0, 1 a check failed, 2 usage, 69 database unreachable.
    """
