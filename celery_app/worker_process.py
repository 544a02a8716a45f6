"""Starts a Celery worker as a process of its own, waits until it is ready, and stops it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from celery_app import ROOT


class WorkerError(Exception):
    """The worker did not start, or did not stop as it should; the message ends with the tail of its log."""


class WorkerProcess:
    """A worker of this application in a subprocess.

    It runs in a session of its own, so that Ctrl-C in the terminal reaches only the process that started it, which
    then stops the worker in good order.
    """

    def __init__(self, url: str, log: Path, *, concurrency: int = 2) -> None:
        self.log = log
        self._node = f"celery_app-{os.getpid()}@{socket.gethostname()}"
        log.write_text("")
        with open(log, "a", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--loglevel=INFO"),
                    *("--concurrency", str(concurrency), "--hostname", self._node),
                ],
                cwd=ROOT,
                env={**os.environ, "PGBROKER_URL": url, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of the worker's main process."""
        return self._process.pid

    def wait_until_ready(self, timeout_seconds: float) -> None:
        """Wait until the worker says in its log that it consumes.

        Raises:
            WorkerError: it ended, or took too long.
        """
        deadline = time.monotonic() + timeout_seconds
        while not any(line.endswith(f"{self._node} ready.") for line in self._lines()):
            status = self._process.poll()
            if status is not None:
                raise self._error(f"the worker ended with status {status} before it was ready")
            if time.monotonic() > deadline:
                raise self._error(f"the worker was not ready after {timeout_seconds:g} seconds")
            time.sleep(0.1)

    def check_alive(self) -> None:
        """Raise WorkerError if the worker has ended."""
        status = self._process.poll()
        if status is not None:
            raise self._error(f"the worker ended with status {status}")

    def stop(self, timeout_seconds: float) -> None:
        """Stop the worker: warm, then cold, and at last by force; nothing is left when this returns.

        One that has ended before it was asked to is left as it is, see ``check_alive``.

        Args:
            timeout_seconds: how long each of the first two requests may take.

        Raises:
            WorkerError: a warm shutdown did not do, or ended with an error.
        """
        if self._process.poll() is not None:
            return
        for request in (signal.SIGTERM, signal.SIGQUIT):
            self._process.send_signal(request)
            try:
                status = self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                continue
            if status != 0 or request is not signal.SIGTERM:
                raise self._error(f"the worker ended with status {status} after {request.name}")
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        raise self._error("the worker had to be killed")

    def _lines(self) -> Iterator[str]:
        with open(self.log, encoding="utf-8", errors="replace") as file:
            for line in file:
                yield line.rstrip()

    def _error(self, message: str) -> WorkerError:
        tail = "\n".join(f"    {line}" for line in deque(self._lines(), 20))
        return WorkerError(f"{message}; the end of its log, {self.log}:\n{tail}")


@contextmanager
def running_worker(url: str, log: Path, *, start_seconds: float, stop_seconds: float) -> Iterator[WorkerProcess]:
    """Run a worker for the length of a block; in the main thread only, since it keeps signals waiting.

    Args:
        url: broker and result backend.
        log: the file for what the worker says; overwritten.
        start_seconds: how long it may take to become ready.
        stop_seconds: how long a warm shutdown may take.

    Raises:
        WorkerError: it did not become ready, or did not stop as it should.
    """
    worker: WorkerProcess | None = None
    try:
        with _signals_held_back():
            worker = WorkerProcess(url, log)
        worker.wait_until_ready(start_seconds)
        yield worker
    except BaseException:
        if worker is not None:
            with suppress(WorkerError), _signals_held_back():  # what happened first is what matters
                worker.stop(stop_seconds)
        raise
    else:
        with _signals_held_back():
            worker.stop(stop_seconds)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait while a process is started or stopped, so that none is lost sight of."""
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, lambda number, frame: arrived.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])
