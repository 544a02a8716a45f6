"""The SQL script and the Core tables describe what a migration makes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.dialects import postgresql

from pgbroker import errors
from pgbroker.postgres import migrate, schema
from pgbroker.postgres.connection import Session
from pgbroker.postgres.revisions import HEAD

if TYPE_CHECKING:
    from .conftest import Ensure, OptionsFor, Picture, Run


def test_the_script_makes_the_same_schema(run: Run, options: OptionsFor, ensure: Ensure, picture: Picture) -> None:
    ensure(options())
    run(migrate.upgrade_script(options(schema="pgbroker_b")))
    made, written = picture("pgbroker"), picture("pgbroker_b")
    assert len(made) > 300
    assert [line.replace("pgbroker_b", "pgbroker") for line in written] == made
    ensure(options(schema="pgbroker_b", auto_migrate=False))


def test_the_script_from_the_newest_revision_installs_functions(
    run: Run, options: OptionsFor, ensure: Ensure, picture: Picture
) -> None:
    given = options()
    ensure(given)
    before = picture("pgbroker")
    run("drop function pgbroker.history_seconds cascade")
    run(migrate.upgrade_script(given, from_revision=HEAD))
    assert picture("pgbroker") == before
    with pytest.raises(errors.OptionError, match="0815"):
        migrate.upgrade_script(given, from_revision="0815")


def test_the_core_tables_are_those_of_the_database(run: Run, options: OptionsFor, ensure: Ensure) -> None:
    ensure(options())
    found = run(
        "select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull"
        " from pg_attribute a join pg_class c on c.oid = a.attrelid"
        " where c.relnamespace = to_regnamespace('pgbroker') and c.relkind in ('r', 'p', 'v') and a.attnum > 0"
        " and not a.attisdropped and c.relname !~ '^job_history_' and c.relname <> 'alembic_version'"
        " order by c.relname, a.attnum"
    )
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    aliases = {"TIMESTAMP WITH TIME ZONE": "timestamp with time zone", "job_status": "pgbroker.job_status"}
    aliases["ack_mode"] = "pgbroker.ack_mode"
    described = []
    for table in sorted(schema.metadata.tables.values(), key=lambda table: table.name):
        for column in table.columns:
            kind = column.type.compile(dialect)
            described.append((table.name, column.name, aliases.get(kind, kind.lower()), not column.nullable))
    assert described == found


def test_a_core_query_runs_in_a_session(options: OptionsFor) -> None:
    given = options(schema="order")
    with closing(Session(given)) as session:
        migrate.ensure_schema(session)
        session.query(
            "insert into \"order\".jobs (queue, task_name, run_after, body) values (%s, 't', now(), '')", ["100%"]
        )
        jobs = schema.jobs
        statement = jobs.select().with_only_columns(jobs.c.task_name, jobs.c.job_id % 1)
        statement = statement.where(jobs.c.status == "PENDING", jobs.c.queue.in_(["a", "100%"])).limit(3)
        assert session.query(*schema.compiled(statement, given.schema)) == [("t", 0)]
        assert session.query(*schema.compiled(jobs.select().with_only_columns(jobs.c.job_id % 1), "order")) == [(0,)]
