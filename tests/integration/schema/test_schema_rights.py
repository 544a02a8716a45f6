"""Who may create the schema, and what those need who only work with it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from pgbroker import errors
from pgbroker.postgres import checks, migrate, rights
from pgbroker.postgres.connection import Session

if TYPE_CHECKING:
    from .conftest import Ensure, OptionsFor, Run


@pytest.mark.parametrize("auto_migrate", [True, False])
def test_a_role_with_the_runtime_grants_works_with_a_migrated_schema(
    run: Run, role: str, auto_migrate: bool, options: OptionsFor, ensure: Ensure
) -> None:
    ensure(options())
    given = options(user=role, auto_migrate=auto_migrate)
    with pytest.raises(errors.PermissionDenied, match="pgbroker check"):
        ensure(given)
    failed = {finding.name: finding.text for finding in checks.check(given) if not finding.ok}
    assert failed.keys() == {"schema", "rights"}
    grants = rights.runtime_grants("pgbroker", role)
    assert grants in failed["rights"].replace("\n    ", "\n")
    run(grants)
    ensure(given)
    assert [finding for finding in checks.check(given) if not finding.ok] == []
    with closing(Session(given)) as session:
        session.query("insert into pgbroker.jobs (queue, run_after, body) values ('q', now(), '')")
        assert session.query("select pgbroker.queue_count('q')") == [(1,)]
        session.query("truncate pgbroker.job_history_00")
        with pytest.raises(errors.PermissionDenied):
            session.query("update pgbroker.alembic_version set version_num = 'x'")
        with pytest.raises(errors.PermissionDenied):
            session.query("create table pgbroker.x (y int)")


def test_grants_reach_tables_of_later_revisions(run: Run, role: str, options: OptionsFor, ensure: Ensure) -> None:
    ensure(options())
    run(rights.runtime_grants("pgbroker", role))
    run("create table pgbroker.later (id bigint generated always as identity)")
    with closing(Session(options(user=role))) as session:
        assert rights.missing_rights(session) == []


@pytest.mark.parametrize(
    ("taken", "missing"),
    [
        ("update on pgbroker.jobs_live", "UPDATE on jobs_live"),
        ("select on pgbroker.alembic_version", "SELECT on alembic_version"),
        ("select on pgbroker.job_log", "SELECT on job_log"),
        ("truncate on pgbroker.job_history_07", "TRUNCATE on job_history_07"),
        ("usage on sequence pgbroker.claim_seq", "USAGE on claim_seq"),
        ("usage on schema pgbroker", "USAGE on the schema"),
    ],
)
def test_each_missing_right_is_found(
    run: Run, role: str, taken: str, missing: str, options: OptionsFor, ensure: Ensure
) -> None:
    ensure(options())
    run(rights.runtime_grants("pgbroker", role))
    run(f"revoke {taken} from {role}")
    with closing(Session(options(user=role))) as session:
        assert rights.missing_rights(session) == [missing]


def test_a_role_that_may_not_create_is_told_what_to_do(
    run: Run, role: str, options: OptionsFor, ensure: Ensure
) -> None:
    with pytest.raises(errors.PermissionDenied, match="pgbroker migrate --sql") as caught:
        ensure(options(user=role))
    assert caught.value.sqlstate == "42501"
    assert run("select to_regnamespace('pgbroker')") == [(None,)]


def test_nothing_is_created_without_auto_migrate(run: Run, options: OptionsFor, ensure: Ensure) -> None:
    with pytest.raises(errors.SchemaMissing, match="pgbroker migrate"):
        ensure(options(auto_migrate=False))
    assert run("select to_regnamespace('pgbroker')") == [(None,)]


def test_a_read_only_database(database: Any, run: Run, options: OptionsFor, ensure: Ensure) -> None:
    given = options()
    run(f'alter database "{database.name}" set default_transaction_read_only = on')
    with pytest.raises(errors.PermissionDenied, match="default_transaction_read_only"):
        ensure(given)
    assert run("select to_regnamespace('pgbroker')") == [(None,)]
    run(f'alter database "{database.name}" reset default_transaction_read_only')
    ensure(given)
    run(f'alter database "{database.name}" set default_transaction_read_only = on')
    migrate.forget()
    ensure(given)
    assert [finding.name for finding in checks.check(given) if not finding.ok] == ["writable"]
