"""Commands for the schema: ``migrate`` and ``check``."""

from __future__ import annotations

import dataclasses
import json

import click

from pgbroker.cli.main import EXIT_CHECK_FAILED
from pgbroker.cli.target import options_of


@click.command()
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL and change nothing; the database is not asked.")
@click.option(
    "--from", "from_revision", metavar="REVISION", help="With --sql: the revision of the database (default: none yet)."
)
@click.pass_context
def migrate(ctx: click.Context, as_sql: bool, from_revision: str | None) -> None:
    """Create the schema, or upgrade it to what this version needs.

    Everything happens in one transaction. At the newest revision, the functions are installed anew.
    """
    from pgbroker.postgres.migrate import upgrade, upgrade_script
    from pgbroker.postgres.revisions import HEAD

    if from_revision is not None and not as_sql:
        raise click.UsageError("--from needs --sql")
    options = options_of(ctx)
    if as_sql:
        click.echo(upgrade_script(options, from_revision=from_revision), nl=False)
        return
    if upgrade(options, repair=True):
        click.echo(f'schema "{options.schema}" is now at revision {HEAD}')
    else:
        click.echo(f'schema "{options.schema}" was at revision {HEAD} already; installed its functions anew')


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
@click.pass_context
def check(ctx: click.Context, as_json: bool) -> None:
    """Look whether the database is fit for pgbroker; exit code 1 if it is not."""
    from pgbroker.postgres import checks

    findings = checks.check(options_of(ctx))
    if as_json:
        click.echo(json.dumps([{**dataclasses.asdict(finding), "ok": finding.ok} for finding in findings], indent=2))
    else:
        for finding in findings:
            text = finding.text.replace("\n", "\n    ")
            click.echo(f"{finding.level:8} {finding.name}: {text}")
    if not all(finding.ok for finding in findings):
        ctx.exit(EXIT_CHECK_FAILED)
