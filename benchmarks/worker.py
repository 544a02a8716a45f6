"""A measured worker, seen from the benchmark."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import records
from benchmarks.commands import Consume
from benchmarks.environment import Environment
from benchmarks.measurement import Settings
from benchmarks.processes import STOP_SECONDS, ProcessFailed, end, python_process, tail

_POLL_SECONDS = 0.02
_ABORT_SECONDS = 2.0


class Worker:
    """A running worker that can be sent to a queue."""

    def __init__(self, process: subprocess.Popen[bytes], command_fd: int, record: Path, log: Path) -> None:
        self._process = process
        self._command_fd = command_fd
        self._record = record
        self._log = log

    def consume(self, command: Consume) -> None:
        """Send it to a queue, away from all others."""
        os.write(self._command_fd, command.encode())

    def wait_for(self, count: int, *, idle_seconds: float) -> bool:
        """Wait until this many tasks have run since it started.

        Args:
            count: How many.
            idle_seconds: Give up when no task has run for so long.

        Returns:
            Whether that was reached.

        Raises:
            ProcessFailed: The worker is gone.
        """
        seen = -1
        moved = time.monotonic()
        while (done := records.count(self._record)) < count:
            if done > seen:
                seen, moved = done, time.monotonic()
            if self._process.poll() is not None:
                raise ProcessFailed(f"the worker ended by itself:\n{tail(self._log)}")
            if time.monotonic() - moved > idle_seconds:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def cpu_seconds(self) -> float:
        """CPU time its main process has used, without the pool; in steps of some 10 ms."""
        # proc(5): the name in parentheses may hold blanks; utime and stime are fields 14 and 15.
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Close its commands, which ends it with all it has begun; returns whether it did so in time."""
        if self._command_fd >= 0:
            os.close(self._command_fd)
            self._command_fd = -1
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            end(self._process, seconds=0)
            return False
        return True


@contextmanager
def running_worker(environment: Environment, queue: str, settings: Settings, folder: Path) -> Iterator[Worker]:
    """Run a worker for the length of the block.

    Args:
        environment: Its broker, queues and record file; the command descriptor is added here.
        queue: The queue it starts with.
        settings: Pool, concurrency and prefetch.
        folder: Where its log goes.
    """
    log = folder / "worker.log"
    arguments = [
        *("-m", "celery", "-A", "benchmarks.bench_app", "worker", "--loglevel", "WARNING", "--queues", queue),
        *("--hostname", f"{queue}@%h", "--pool", settings.pool, "--concurrency", str(settings.concurrency)),
        *("--prefetch-multiplier", str(settings.prefetch)),
        *("--without-mingle", "--without-gossip", "--without-heartbeat"),
        *settings.worker_options,
    ]
    read_end, write_end = os.pipe()
    environment = dataclasses.replace(environment, command_fd=read_end)
    with ExitStack() as ends:
        ends.callback(os.close, read_end)
        process = ends.enter_context(python_process(arguments, environment, log=log))
        worker = Worker(process, write_end, Path(environment.records), log)
        ends.callback(worker.stop)
        try:
            yield worker
        except BaseException:
            # Celery would wait up to 30 seconds for tasks whose results nobody reads any more.
            worker.stop(_ABORT_SECONDS)
            raise
