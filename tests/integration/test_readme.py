"""What the documents tell readers to do is done, as a reader would: in an empty folder, one block after the other.

How blocks are marked is described in ``AGENTS.md``, "Tests".
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from markdown_it import MarkdownIt

from pgbroker.options import Options
from pgbroker.postgres import embedded, migrate

if TYPE_CHECKING:
    from conftest import Database

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_URL = "pgbroker://proj:secret@localhost/proj"
MARKS = {"runnable", "background", "repository", "wait"}
STEP_SECONDS = 60
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Step(NamedTuple):
    """A marked code block."""

    line: int
    language: str
    marks: tuple[str, ...]
    text: str


def steps_of(document: Path) -> list[Step]:
    found = []
    for token in MarkdownIt("commonmark").parse(document.read_text("utf-8")):
        if token.type == "fence" and " " in token.info:
            assert token.map is not None
            language, *marks = token.info.split()
            assert all(mark in MARKS or mark.startswith("file=") for mark in marks), token.info
            found.append(Step(token.map[0] + 1, language, tuple(marks), token.content))
    return found


DOCUMENTS = {
    str(path.relative_to(ROOT)): steps for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (steps := steps_of(path))
}  # fmt: skip


class Reader:
    """Does what a document says."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        self.background: list[subprocess.Popen[bytes]] = []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"}

    def do(self, step: Step) -> None:
        text = step.text.replace(EXAMPLE_URL, self.database.url)
        file = next((mark.partition("=")[2] for mark in step.marks if mark.startswith("file=")), None)
        if file is not None:
            (self.folder / file).write_text(text)
        elif step.language == "sql":
            self.query(text)
        elif step.language == "python":
            self.run_python(text, seconds=STEP_SECONDS if "wait" in step.marks else 0)
        elif "background" in step.marks:
            self.start(text)
        else:
            self.run_commands(text, ROOT if "repository" in step.marks else self.folder)

    def query(self, text: str) -> None:
        """Run SQL; a document that speaks of tables takes it for granted that they are there."""
        migrate.upgrade(Options.from_url(self.database.url))
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(text)

    def run_python(self, text: str, *, seconds: float) -> None:
        """Run a script; again, until it succeeds, for so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            done = self.run([sys.executable, "-c", text], self.folder)
            if done.returncode == 0 or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        assert done.returncode == 0, done.stderr
        said = re.findall(r"^\s*print\(.*\)  # (.+)$", text, re.MULTILINE)
        self.compare("".join(f"{line}\n" for line in said), done.stdout)

    def run_commands(self, text: str, folder: Path) -> None:
        pieces = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
        assert not pieces[0], "output without a command"
        for command, expected in zip(pieces[1::2], pieces[2::2], strict=True):
            if command.startswith("make "):  # CI runs these by themselves
                continue
            done = self.run(shlex.split(command), folder)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            if expected:
                self.compare(expected, done.stdout)

    def run(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, text=True, timeout=STEP_SECONDS
        )

    def compare(self, expected: str, found: str) -> None:
        assert doctest.OutputChecker().check_output(expected, found, LIKE), f"expected:\n{expected}\nfound:\n{found}"

    def start(self, text: str) -> None:
        """Start a worker and wait until it says that it is ready."""
        log = self.folder / "worker.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(text.removeprefix("$ ")),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.background.append(process)
        deadline = time.monotonic() + STEP_SECONDS
        while not re.search(r" ready\.$", said := log.read_text(errors="replace"), re.MULTILINE):
            assert process.poll() is None, f"the worker ended:\n{said}"
            assert time.monotonic() < deadline, f"the worker was not ready in time:\n{said}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the workers; warm, as Ctrl-C does."""
        for process in self.background:
            process.send_signal(signal.SIGINT)
        for process in self.background:
            try:
                process.wait(20)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()


@contextmanager
def reader_of(database: Database) -> Iterator[Reader]:
    """A reader in an empty folder; not pytest's own, which the embedded server's user may not pass."""
    with tempfile.TemporaryDirectory(prefix="pgb-doc-") as folder:
        reader = Reader(Path(folder), database)
        try:
            yield reader
        finally:
            reader.stop()
            embedded.stop(Path(folder) / ".pgbroker")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_says_can_be_done(name: str, database: Database) -> None:
    with reader_of(database) as reader:
        for step in DOCUMENTS[name]:
            try:
                reader.do(step)
            except Exception as error:
                logs = [log.read_text(errors="replace")[-4000:] for log in reader.folder.glob("*.log")]
                pytest.fail(f"{name}, line {step.line}: {error}\n{''.join(logs)}")


def test_the_documents_that_have_steps() -> None:
    assert {"README.md", "docs/tutorial/first-steps.md", "docs/howto/use-an-existing-app.md"} <= set(DOCUMENTS)


def test_a_wrong_document_is_noticed(database: Database) -> None:
    """The reader compares output and looks at exit codes, or the tests above say nothing."""
    wrong = (
        Step(1, "python", ("runnable",), "print(1)  # 2\n"),
        Step(1, "python", ("runnable",), "raise SystemExit(1)\n"),
        Step(1, "console", ("runnable",), "$ celery --version\n0.0.0\n"),
        Step(1, "console", ("runnable",), "$ celery -A nowhere pgbroker jobs\n"),
        Step(1, "console", ("runnable", "background"), "$ celery -A nowhere worker\n"),
    )
    with reader_of(database) as reader:
        for step in wrong:
            with pytest.raises(AssertionError):
                reader.do(step)
