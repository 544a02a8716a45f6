"""``celery -A APP pgbroker migrate`` and ``check``, as a user or a script sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from pgbroker.cli.main import pgbroker
from pgbroker.postgres.revisions import HEAD

if TYPE_CHECKING:
    from .conftest import OptionsFor, Picture, Run

NOWHERE = "pgbroker://user:s3cret%40@127.0.0.1:1/db"
Call = Callable[..., Result]


@pytest.fixture
def call(database: Any) -> Call:
    """Run a command against an application, which by default has the test's database as its broker."""

    def invoke(*words: str, **conf: Any) -> Result:
        app = Celery("cli", set_as_current=False, broker=conf.pop("broker_url", database.url))
        app.conf.update(conf)
        return CliRunner().invoke(pgbroker, words, obj=CLIContext(app=app, no_color=True, workdir=None))

    return invoke


def test_migrate_creates_the_schema_and_can_be_repeated(call: Call, run: Run) -> None:
    first, second = call("migrate"), call("migrate")
    assert (first.exit_code, first.output) == (0, f'schema "pgbroker" is now at revision {HEAD}\n')
    assert (second.exit_code, "already" in second.output) == (0, True)
    assert run("select version_num from pgbroker.alembic_version") == [(HEAD,)]


def test_migrate_works_without_auto_migrate_and_on_the_schema_of_the_options(call: Call, run: Run) -> None:
    done = call("migrate", broker_transport_options={"schema": "order", "auto_migrate": False})
    assert (done.exit_code, done.stderr) == (0, "")
    assert run('select version_num from "order".alembic_version') == [(HEAD,)]
    assert run("select to_regnamespace('pgbroker')") == [(None,)]


def test_migrate_prints_the_sql_without_a_server(call: Call, run: Run, picture: Picture) -> None:
    done = call("migrate", "--sql", broker_url=NOWHERE)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "s3cret" not in done.stdout
    assert done.stdout.startswith("BEGIN;")
    assert done.stdout.rstrip().endswith("COMMIT;")
    run(done.stdout)
    written = picture("pgbroker")
    assert call("migrate").exit_code == 0
    assert picture("pgbroker") == written


def test_migrate_takes_a_starting_revision_for_sql_only(call: Call) -> None:
    assert call("migrate", "--from", HEAD).exit_code == 2
    done = call("migrate", "--sql", "--from", HEAD)
    assert done.exit_code == 0
    assert "create table" not in done.stdout.lower().replace("create table if", "")
    unknown = call("migrate", "--sql", "--from", "0815")
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "0815" in unknown.stderr


def test_check_tells_good_from_bad_by_exit_code_and_json(call: Call, run: Run) -> None:
    empty = call("check")
    assert empty.exit_code == 1
    assert "pgbroker migrate" in empty.output
    call("migrate")
    good = call("check", "--json")
    findings = json.loads(good.stdout)
    assert (good.exit_code, {finding["ok"] for finding in findings}) == (0, {True})
    assert {"server", "writable", "schema", "rights", "functions", "history", "transactions", "prepared"} == {
        finding["name"] for finding in findings
    }
    run("drop function pgbroker.history_seconds cascade")
    bad = call("check", "--json")
    broken = [finding for finding in json.loads(bad.stdout) if not finding["ok"]]
    assert bad.exit_code == 1
    assert [finding["name"] for finding in broken] == ["functions"]
    assert "history_seconds" in broken[0]["text"]


def test_check_prints_grants_that_work(call: Call, run: Run, role: str, database: Any) -> None:
    call("migrate")
    url = database.server.url(database.name, user=role)
    refused = call("check", broker_url=url)
    assert refused.exit_code == 1
    grants = [line.strip() for line in refused.output.splitlines() if line.startswith("    ")]
    assert len(grants) > 4
    run("\n".join(grants))
    assert call("check", broker_url=url).exit_code == 0


@pytest.mark.parametrize("words", [("check",), ("check", "--json"), ("migrate",)])
def test_unreachable_is_69_and_one_line_without_the_password(call: Call, words: tuple[str, ...]) -> None:
    done = call(*words, broker_url=NOWHERE)
    assert (done.exit_code, done.stdout) == (69, "")
    assert done.stderr.startswith("Error: cannot connect to pgbroker://user:**@127.0.0.1:1/db")
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"broker_url": "memory://"}, "neither the broker nor the result backend"),
        ({"broker_url": f"{NOWHERE}?shema=x"}, "'schema'"),
        ({"broker_url": NOWHERE, "broker_transport_options": {"lease_seconds": 0}}, "lease_seconds"),
    ],
)
def test_usage_is_2(call: Call, conf: dict[str, Any], message: str) -> None:
    done = call("check", **conf)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert "s3cret" not in done.stderr


def test_a_role_without_rights_is_told_in_one_line(call: Call, role: str, database: Any) -> None:
    done = call("migrate", broker_url=database.server.url(database.name, user=role))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "migrate --sql" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("broker", ["memory://", NOWHERE.replace("pgbroker", "amqp")])
def test_the_result_backend_is_taken_where_the_broker_is_another(
    call: Call, run: Run, database: Any, broker: str
) -> None:
    options = {"schema": "results_only"}
    done = call("migrate", broker_url=broker, result_backend=database.url, result_backend_transport_options=options)
    assert (done.exit_code, done.stderr) == (0, "")
    assert run("select version_num from results_only.alembic_version") == [(HEAD,)]


@pytest.mark.parametrize("as_list", [True, False])
def test_of_several_urls_the_first_of_ours_is_taken(call: Call, database: Any, as_list: bool) -> None:
    urls = ["memory://", database.url, NOWHERE]
    assert call("migrate", broker_url=urls if as_list else ";".join(urls)).exit_code == 0


def test_it_is_a_command_of_celery(tmp_path: Path, database: Any, options: OptionsFor) -> None:
    (tmp_path / "shop.py").write_text(f"from celery import Celery\napp = Celery('shop', broker={database.url!r})\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def celery(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "shop", "pgbroker", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert celery("migrate").returncode == 0
    assert celery("check").returncode == 0
    assert celery("nonsense").returncode == 2
    helped = celery("--help")
    assert "migrate" in helped.stdout
    assert "check" in helped.stdout
