"""Many processes that migrate at the same moment."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pgbroker import errors
from pgbroker.postgres import installer, migrate
from pgbroker.postgres.revisions import HEAD

if TYPE_CHECKING:
    from .conftest import OptionsFor, Run, WaitUntil


_STARTER = """
import sys
from pgbroker.options import Options
from pgbroker.postgres import migrate, installer
from pgbroker.postgres.connection import Session
session = Session(Options.from_url(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
migrate.ensure_schema(session)
print(session.query("select count(*) from pgbroker.jobs")[0][0])
"""


def test_sixteen_processes_start_on_an_empty_database(database: Any, run: Run) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _STARTER, database.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(16)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            output, error = process.communicate(timeout=90)
            assert (process.returncode, output, error) == (0, "0\n", "")
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert run("select version_num from pgbroker.alembic_version") == [(HEAD,)]


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_waits_for_another_migration_whatever_the_role_is_set_to(
    database: Any, run: Run, isolation: str, options: OptionsFor, wait_until: WaitUntil
) -> None:
    run(f"alter database \"{database.name}\" set default_transaction_isolation = '{isolation}'")
    run(f'alter database "{database.name}" set statement_timeout = 1500')
    run(f'alter database "{database.name}" set idle_in_transaction_session_timeout = 500')
    given = options()
    done: list[bool | Exception] = []

    def upgrade() -> None:
        try:
            done.append(migrate.upgrade(given))
        except Exception as exc:
            done.append(exc)

    key = installer.lock_key(given.schema)
    waiting = (
        "select count(*) from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory'"
        " and not l.granted and a.datname = current_database() and query_start < clock_timestamp() - interval '1.8 s'"
    )
    starter = [sys.executable, "-c", _STARTER, database.url]
    run("select pg_advisory_lock(%s)", key)
    thread = threading.Thread(target=upgrade)
    thread.start()
    with subprocess.Popen(starter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        try:
            wait_until(lambda: run(waiting) == [(2,)])
        finally:
            run("select pg_advisory_unlock(%s)", key)
            thread.join(60)
            output, _ = process.communicate(timeout=60)
    assert done in ([True], [False])
    assert (process.returncode, output) == (0, "ready\n0\n")


def test_a_lock_that_is_never_released_is_told(run: Run, monkeypatch: pytest.MonkeyPatch, options: OptionsFor) -> None:
    monkeypatch.setattr(installer, "WAIT_SECONDS", 1)
    given = options()
    run("select pg_advisory_lock(%s)", installer.lock_key(given.schema))
    with pytest.raises(errors.StatementTimeout, match="somebody holds a lock"):
        migrate.upgrade(given)
    assert run("select to_regnamespace('pgbroker')") == [(None,)]
    run("select pg_advisory_unlock(%s)", installer.lock_key(given.schema))
    assert migrate.upgrade(given) is True
