"""Applications whose only change is the broker URL, and what they are told when it leads nowhere."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from psycopg2.extensions import make_dsn
from worker_site import Site, wait_until

PLAIN_APP = """
from celery import Celery

app = Celery("plain", broker={url!r}, backend={url!r})


@app.task
def double(number):
    return 2 * number
"""

SECRET = "s3cr3t/pässword"
SECRET_IN_URL = "s3cr3t%2Fp%C3%A4ssword"


def run(*arguments: str, cwd: Path, seconds: float = 30) -> tuple[int, str]:
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds,
        check=False,
    )
    return finished.returncode, finished.stdout.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for an application of its own."""
    folder = tmp_path / "plain"
    folder.mkdir()
    return folder


@pytest.fixture
def secret_url(database: Any) -> Iterator[str]:
    """The URL of the test's database, for a role with a password; the embedded server is told to ask for it."""
    role = f"role_of_{database.name}"
    with closing(database.server.admin()) as admin, admin.cursor() as cursor:
        cursor.execute(f'create role "{role}" login superuser password %s', (SECRET,))
        cursor.execute("show hba_file")
        rules = Path(cursor.fetchone()[0])
        is_ours = "PGBROKER_TEST_DSN" not in os.environ
        text = rules.read_text() if is_ours else ""
        if is_ours:
            rules.write_text(f'local all "{role}" scram-sha-256\n{text}')
            cursor.execute("select pg_reload_conf()")
        yield database.url.replace("://", f"://{role}:{SECRET_IN_URL}@", 1).replace("@postgres@", "@")
        if is_ours:
            rules.write_text(text)
            cursor.execute("select pg_reload_conf()")
        cursor.execute(f'drop database if exists "{database.name}" with (force)')
        cursor.execute(f'drop role "{role}"')


@pytest.fixture
def closed_port() -> int:
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_needs_nothing_but_the_broker_url(folder: Path, database: Any) -> None:
    (folder / "plain.py").write_text(PLAIN_APP.format(url=database.url))
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "plain", "worker", "-P", "solo", "-l", "warning"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code, output = run("-c", "import plain; print(plain.double.delay(21).get(timeout=20))", cwd=folder)
        assert (code, output.strip()) == (0, "42")
        code, output = run("-m", "celery", "-A", "plain", "inspect", "ping", cwd=folder)
        assert code == 0
        assert "pong" in output
    finally:
        worker.terminate()
        assert worker.wait(15) == 0


def test_celery_purge_and_amqp(folder: Path, database: Any) -> None:
    (folder / "plain.py").write_text(PLAIN_APP.format(url=database.url))
    run("-c", "import plain; [plain.double.delay(n) for n in range(3)]", cwd=folder)
    code, output = run("-m", "celery", "-A", "plain", "purge", "-f", cwd=folder)
    assert (code, "Purged 3 messages" in output) == (0, True), output
    code, output = run("-m", "celery", "-A", "plain", "purge", "-f", cwd=folder)
    assert "No messages purged" in output


@pytest.mark.slow
def test_no_password_shows(site: Site, secret_url: str) -> None:
    app = Celery("app", broker=secret_url, backend=secret_url, set_as_current=False)
    worker = site.worker("solo", 1, url=secret_url)
    outputs = [worker.output(), repr(app.connection()), app.connection().as_uri(), str(app), repr(app.backend)]
    environment = site.environment(secret_url)
    for command in (["report"], ["inspect", "stats"], ["inspect", "report"], ["inspect", "conf"], ["status"]):
        finished = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "app", *command],
            cwd=Path(__file__).parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            check=True,
        )
        outputs.append(finished.stdout.decode())
    site.cut_all()
    wait_until(lambda: worker.output().count("Connected to") > 1, 10, site.describe)
    outputs.append(worker.output())
    app.close()
    assert not [output for output in outputs if "s3cr3t" in output]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no server", "refused"),
        ("no database", "does not exist"),
        pytest.param("no socket", "No such file", marks=pytest.mark.slow),
        ("unknown option", "unknown option 'lease_second'"),
        ("bad URL", "port"),
    ],
)
def test_a_broker_that_cannot_be_reached_is_told_in_one_line(
    change: str, said: str, site: Site, closed_port: int
) -> None:
    url = {
        "no server": f"pgbroker://someone:{SECRET_IN_URL}@127.0.0.1:{closed_port}/somewhere?connect_timeout=2",
        "no database": site.database.server.url("there_is_no_such_database"),
        "no socket": f"pgbroker://someone:{SECRET_IN_URL}@/somewhere?host=/nowhere",
        "unknown option": site.database.server.url(site.database.name, lease_second="5"),
        "bad URL": f"pgbroker://someone:{SECRET_IN_URL}@127.0.0.1:port/somewhere",
    }[change]
    worker = site.worker("solo", 1, url=url, wait=False, broker_connection_max_retries=1)
    worker.may_fail = True
    assert worker.wait(20) != 0
    assert "s3cr3t" not in worker.output()
    assert [line for line in worker.output().splitlines() if said in line]
    policy = {"max_retries": 2, "interval_start": 0.1, "interval_step": 0.1}
    app = Celery("app", broker=url, set_as_current=False, task_publish_retry_policy=policy)
    before = time.monotonic()
    with pytest.raises((OperationalError, ValueError), match=said) as caught:
        app.send_task("anything")
    assert time.monotonic() - before < 10
    assert "s3cr3t" not in str(caught.value)
    assert isinstance(caught.value, OperationalError) or change in ("unknown option", "bad URL")
    app.close()


def test_a_worker_told_not_to_try_again_ends(site: Site, closed_port: int) -> None:
    url = f"pgbroker://someone:{SECRET_IN_URL}@127.0.0.1:{closed_port}/somewhere"
    worker = site.worker("solo", 1, url=url, wait=False, broker_connection_retry_on_startup=False)
    assert worker.wait(20) != 0
    assert "CRITICAL" in worker.output().splitlines()[-1]
    assert "Traceback" not in worker.output()
    assert "s3cr3t" not in worker.output()


@pytest.mark.slow
def test_a_server_that_says_nothing_costs_the_time_out(site: Site) -> None:
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"pgbroker://127.0.0.1:{silent.getsockname()[1]}/somewhere?connect_timeout=2"
        app = Celery("app", broker=url, set_as_current=False, task_publish_retry=False)
        before = time.monotonic()
        with pytest.raises(OperationalError, match="connect_timeout"):
            app.send_task("anything")
        assert time.monotonic() - before < 10  # kombu itself tries once more, after two seconds
        app.close()


def test_a_wrong_password_is_refused_in_words(site: Site, secret_url: str) -> None:
    """Where the server asks for passwords at all: the test's may trust everybody."""
    url = secret_url.replace(SECRET_IN_URL, "wr0ng")
    role = f"role_of_{site.database.name}"
    app = Celery("app", broker=url, set_as_current=False, task_publish_retry=False)
    with contextlib.suppress(psycopg2.OperationalError):
        psycopg2.connect(make_dsn(**{**site.database.dsn, "user": role, "password": "wr0ng"})).close()
        pytest.skip("this server trusts everybody")
    with pytest.raises(OperationalError, match="password authentication failed") as caught:
        app.send_task("anything")
    assert "wr0ng" not in str(caught.value)
    app.close()
