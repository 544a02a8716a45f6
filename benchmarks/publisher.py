"""Publishes tasks one by one from a process of its own, and reports how long it took.

``python -m benchmarks.publisher QUEUE RUN TASKS [QUEUE RUN TASKS ...]`` prints a line for each load:
seconds on the clock, seconds of this process on a CPU.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.commands import Consume
from benchmarks.environment import Environment
from benchmarks.processes import ProcessFailed, python_process, tail
from benchmarks.records import task_ids

#: Slowest rate that is waited for, in messages per second.
_SLOWEST = 50


class Took(NamedTuple):
    """What publishing a load took.

    Attributes:
        seconds: On the clock.
        cpu_seconds: Of the publishing process.
    """

    seconds: float
    cpu_seconds: float


def publish(environment: Environment, loads: Sequence[Consume], folder: Path) -> list[Took]:
    """Publish in a new process.

    Args:
        environment: The broker and the queues.
        loads: What is published, one after the other.
        folder: Where the log goes.

    Returns:
        For each load what it took.

    Raises:
        ProcessFailed: It did not work, or took too long.
    """
    log = folder / "publisher.log"
    arguments = ["-m", "benchmarks.publisher", *(str(word) for load in loads for word in load)]
    with python_process(arguments, environment, log=log, stdout=subprocess.PIPE) as process:
        try:
            output, _ = process.communicate(timeout=30 + sum(load.tasks for load in loads) / _SLOWEST)
        except subprocess.TimeoutExpired:
            raise ProcessFailed("publishing takes too long") from None
        if process.returncode:
            raise ProcessFailed(f"publishing failed:\n{tail(log)}")
    return [Took(*map(float, line.split())) for line in output.splitlines()]


def main(words: Sequence[str]) -> None:
    """Publish the loads the command line names."""
    from benchmarks.bench_app import app, noop

    for queue, run, tasks in zip(words[::3], words[1::3], words[2::3], strict=True):
        began, cpu_began = time.perf_counter(), time.process_time()
        for identity in task_ids(int(run), int(tasks)):
            noop.apply_async(task_id=identity, queue=queue)
        print(time.perf_counter() - began, time.process_time() - cpu_began, flush=True)
    pool: Any = app.pool
    pool.force_close_all()


if __name__ == "__main__":
    main(sys.argv[1:])
