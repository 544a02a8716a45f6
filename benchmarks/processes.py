"""Processes the benchmark starts: each in a session of its own, each ended by its id, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.environment import Environment

#: Where ``benchmarks`` can be imported from.
ROOT = Path(__file__).resolve().parent.parent

#: How long a process gets to end by itself after SIGTERM.
STOP_SECONDS = 20.0


class ProcessFailed(Exception):
    """A process of the benchmark ended badly or too late; the text holds the end of its log."""


@contextmanager
def python_process(
    arguments: Sequence[str], environment: Environment, *, log: Path, stdout: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python ARGUMENTS`` for the length of the block, and end it afterwards.

    Its own session keeps the terminal's Ctrl-C away from it: the benchmark ends it, in good order.

    Args:
        arguments: What comes after ``python``.
        environment: Its settings; the command descriptor is inherited.
        log: File that takes what it writes to stderr (and to stdout, unless that is given).
        stdout: As for :class:`subprocess.Popen`.
    """
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment.as_variables(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=sink if stdout is None else stdout,
            stderr=sink,
            pass_fds=[environment.command_fd] if environment.command_fd >= 0 else [],
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)
        stream: IO[bytes] | None = process.stdout
        if stream is not None:
            stream.close()


def end(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> bool:
    """End a process: SIGTERM, then SIGKILL to its whole session.

    Returns:
        Whether it ended by itself in time.
    """
    if process.poll() is not None:
        return True
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return True


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
