"""Creating and upgrading the schema."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from pgbroker import errors
from pgbroker.postgres import checks, migrate, sql_files
from pgbroker.postgres.connection import Session
from pgbroker.postgres.revisions import HEAD

if TYPE_CHECKING:
    from .conftest import Ensure, OptionsFor, Picture, Run


def relations(run: Run, name: str) -> int:
    return int(run("select count(*) from pg_class where relnamespace = to_regnamespace(%s)", f'"{name}"')[0][0])


ODD = "Jobs of 'the' shop 🐘 100% %s"


@pytest.mark.parametrize("name", ["pgbroker", "order", "x" * 63, "_0", ODD])
def test_creates_the_schema_on_first_use(run: Run, name: str, options: OptionsFor, ensure: Ensure) -> None:
    given = options(schema=name)
    ensure(given)
    assert run(f'select version_num from "{name}".alembic_version') == [(HEAD,)]
    assert [finding for finding in checks.check(given) if not finding.ok] == []
    run(f"insert into \"{name}\".jobs (queue, task_name, run_after, body) values ('q', 't', now(), '')")
    assert run(f"select \"{name}\".queue_count('q')") == [(1,)]
    assert run(f'select task_name, status from "{name}".job_log') == [("t", "PENDING")]


def test_asks_once_per_process(run: Run, options: OptionsFor, ensure: Ensure) -> None:
    given = options()
    ensure(given)
    run("drop schema pgbroker cascade")
    ensure(options())
    assert relations(run, "pgbroker") == 0
    migrate.forget(given)
    ensure(given)
    assert relations(run, "pgbroker") > 0


def test_two_schemas_in_one_database_do_not_touch_each_other(
    run: Run, options: OptionsFor, ensure: Ensure, picture: Picture
) -> None:
    ensure(options(schema="one"))
    before = picture("one")
    ensure(options(schema="two"))
    run("insert into two.jobs (queue, run_after, body) values ('q', now(), '')")
    assert run("select count(*) from one.jobs") == [(0,)]
    run("drop schema two cascade")
    assert picture("one") == before


def test_search_path_does_not_matter(database: Any, run: Run, options: OptionsFor, ensure: Ensure) -> None:
    run("create schema trap")
    run("create table trap.alembic_version (version_num text)")
    run("insert into trap.alembic_version values ('trap')")
    run("create table trap.pg_proc (x int)")
    run("create table trap.pg_namespace (x int)")
    run(f'alter database "{database.name}" set search_path = trap, pg_catalog, "no such"')
    given = options()
    ensure(given)
    assert migrate.upgrade(given, repair=True) is False
    assert relations(run, "trap") == 3
    assert run("select version_num from pgbroker.alembic_version") == [(HEAD,)]


def test_a_failed_migration_leaves_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, options: OptionsFor, ensure: Ensure
) -> None:
    monkeypatch.setattr(sql_files, "functions_sql", lambda schema: ["create nonsense"])
    with pytest.raises(errors.DatabaseError, match="nonsense"):
        ensure(options())
    assert run("select to_regnamespace('pgbroker')") == [(None,)]


def test_a_schema_made_beforehand_is_used(run: Run, role: str, options: OptionsFor, ensure: Ensure) -> None:
    run(f"create schema pgbroker authorization {role}")
    ensure(options(user=role))
    assert run("select tableowner from pg_tables where tablename = 'jobs'") == [(role,)]


def test_an_older_schema(run: Run, monkeypatch: pytest.MonkeyPatch, options: OptionsFor, ensure: Ensure) -> None:
    ensure(options())
    monkeypatch.setattr(migrate, "REVISIONS", ("0000", *migrate.REVISIONS))
    run("update pgbroker.alembic_version set version_num = '0000'")
    with pytest.raises(errors.SchemaTooOld, match=f"at revision 0000.*needs {HEAD}.*pgbroker migrate"):
        ensure(options(auto_migrate=False))


def test_a_newer_schema(run: Run, options: OptionsFor, ensure: Ensure, picture: Picture) -> None:
    given = options()
    ensure(given)
    migrate.forget()
    run("update pgbroker.alembic_version set version_num = '9999'")
    before = picture("pgbroker")
    for attempt in (ensure, migrate.upgrade):
        with pytest.raises(errors.SchemaTooNew, match="9999"):
            attempt(given)
    run("insert into pgbroker.settings values ('minimum_revision', '9998')")
    with pytest.raises(errors.SchemaTooNew):
        ensure(given)
    run("update pgbroker.settings set value = %s where name = 'minimum_revision'", HEAD)
    ensure(given)
    run("delete from pgbroker.settings where name = 'minimum_revision'")
    assert picture("pgbroker") == before


def test_at_the_newest_revision_nothing_is_written(run: Run, options: OptionsFor, ensure: Ensure) -> None:
    given = options()
    ensure(given)
    rows = "select oid, xmin::text from pg_proc where pronamespace = 'pgbroker'::regnamespace order by oid"
    before = run(rows)
    assert migrate.upgrade(given) is False
    migrate.forget()
    ensure(given)
    assert run(rows) == before


def test_functions_are_repaired_and_old_ones_of_ours_dropped(
    run: Run, options: OptionsFor, ensure: Ensure, picture: Picture
) -> None:
    given = options()
    ensure(given)
    before = picture("pgbroker")
    run("revoke execute on function pgbroker.history_slot(timestamptz) from public")
    run("drop function pgbroker.history_seconds cascade")
    run("create function pgbroker.gone(int) returns int language sql as 'select 1'")
    run("comment on function pgbroker.gone(int) is 'pgbroker 0000'")
    run("create function pgbroker.history_slot(text) returns int language sql as 'select 1'")
    run("comment on function pgbroker.history_slot(text) is 'pgbroker 0000'")
    run("create function pgbroker.theirs() returns int language sql as 'select 1'")
    assert [finding.name for finding in checks.check(given) if not finding.ok] == ["functions"]
    assert migrate.upgrade(given, repair=True) is False
    assert run("select has_function_privilege('pg_monitor', 'pgbroker.history_slot(timestamptz)', 'execute')") == [
        (False,)
    ]
    run("drop function pgbroker.theirs()")
    assert picture("pgbroker") == before


def test_what_is_missing_of_the_schema_is_told_from_what_else_is_missing(run: Run, options: OptionsFor) -> None:
    given = options()
    with closing(Session(given)) as session:
        session.connect()
        migrate.ensure_schema(session)
        with pytest.raises(errors.DatabaseError, match="no_such_function"):
            session.query("select no_such_function()")
        assert session.is_open
        run("drop schema pgbroker cascade")
        with pytest.raises(errors.ConnectionLost, match='schema "pgbroker" was dropped or changed') as caught:
            session.query("select pgbroker.history_seconds()")
        assert "LINE" not in str(caught.value)
        session.connect()
        migrate.ensure_schema(session)
        assert session.query("select pgbroker.history_seconds()") == [(86400.0,)]
