"""The demonstration, from nothing to nothing: as a process, on a server that it starts itself or on a given one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pgbroker.postgres import embedded

if TYPE_CHECKING:
    from conftest import Database

ROOT = Path(__file__).resolve().parents[2]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "docs").mkdir(parents=True)
    (folder / "README.md").write_text("# Title\n\nSome [good](docs/a.md#a) and [bad](docs/a.md#b) links.\n")
    (folder / "docs" / "a.md").write_text("# A\n")
    (folder / "docs" / "binary.md").write_bytes(b"\0")
    return folder


@pytest.fixture
def demo(tmp_path: Path) -> Start:
    def start(*arguments: str | Path, url: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "celery_app.demo", *map(str, arguments), "--report", str(tmp_path / "report")],
            cwd=ROOT,
            env={**os.environ, "PGBROKER_URL": url, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def read_until(beginning: str, process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if line.startswith(beginning):
            return output
    pytest.fail(f"no line begins with {beginning!r} in:\n{output}")


def worker_pid(output: str) -> int:
    match = re.search(r"^Worker: process (\d+)", output, re.MULTILINE)
    assert match is not None, output
    return int(match.group(1))


def assert_gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_shows_everything_on_a_server_of_its_own_and_leaves_nothing_running(
    demo: Start, documents: Path, tmp_path: Path
) -> None:
    server = tmp_path / "server"
    process = demo(documents, url=f"pgbroker+embedded://{server}")
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert "add.delay(2, 3).get() -> 5" in output
    assert "collect: 3 of 3" in output
    assert "analyse and check: 2 of 2" in output
    assert "docs/a.md#b: no heading with the anchor #b" in output
    assert "asking for it twice stored it once" in output
    assert "Another look: 0 changed, 2 as they were" in output
    assert re.search(r"DONE +│ celery_app\.tasks\.collect +│ 3 ", output)
    assert "RUNNING" not in output
    report = (tmp_path / "report" / "index.html").read_text()
    assert "3 documents, 7 words, 1 broken links, 1 not readable" in report
    assert_gone(worker_pid(output))
    assert not embedded.is_running(server)


def test_runs_on_a_given_server_and_checks_anew_what_changes_meanwhile(
    demo: Start, documents: Path, database: Database
) -> None:
    process = demo(documents, url=database.url)
    output = read_until("Another look at the files is due", process)
    (documents / "docs" / "a.md").write_text("# A\n\n# B\n\n[x](nowhere.md)\n")
    rest, _ = process.communicate(timeout=100)
    output += rest
    assert process.returncode == 0, output
    assert "Another look: 1 changed, 1 as they were" in rest
    assert "docs/a.md:5: nowhere.md: no such file" in rest
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("select task_name, count(*) from pgbroker.job_log where status = 'DONE' group by task_name")
        counts = {name.removeprefix("celery_app.tasks."): number for name, number in cursor.fetchall()}
        cursor.execute("select dedupe_key from pgbroker.job_log where dedupe_key is not null order by 1")
        keys = [key for (key,) in cursor.fetchall()]
    assert counts == {"add": 1, "collect": 4, "analyse": 3, "check": 3, "build": 2, "recheck": 1}
    names = ("README.md", "docs/a.md", "docs/binary.md")
    assert keys == [*(f"collect:{documents / name}" for name in names), f"recheck:{documents}"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_its_worker(
    demo: Start, documents: Path, database: Database, number: signal.Signals
) -> None:
    process = demo(documents, url=database.url)
    output = read_until("Worker: process", process)
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output + rest
    assert "Interrupted" in rest
    assert_gone(worker_pid(output))


def test_says_what_is_wrong(demo: Start, documents: Path) -> None:
    for arguments, url, status, message in (
        ([documents / "nowhere"], "pgbroker://127.0.0.1:1/none", 2, "Nothing to examine: there is no folder"),
        ([documents / "README.md"], "pgbroker://127.0.0.1:1/none", 2, "is not a folder"),
        ([documents], "pgbroker://user:secret@127.0.0.1:1/none", 1, "Failed: .*[Cc]onnection refused"),
        ([documents], "pgbroker://127.0.0.1:1/none?lease_secnds=5", 1, "Failed: OptionError: .*lease_seconds"),
    ):
        process = demo(*arguments, url=url)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == status, output
        assert re.search(message, output), output
        assert "Traceback" not in output
        assert "secret" not in output
