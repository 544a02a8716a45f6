"""The record of which task ran when: written by the pool children, read by the benchmark.

One file per worker. Each run of a task appends 16 bytes with a single ``write`` on a descriptor in ``O_APPEND`` mode,
which Linux does not tear or interleave, so children need no lock and no run can be overwritten by another one.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: Run, number of the task within the run, CLOCK_MONOTONIC in seconds.
RECORD = struct.Struct("<IId")

#: Spreads neighbouring numbers over the whole range, so that ids are as unordered as random ones.
_SPREAD = 2654435761


def task_id(run: int, number: int) -> str:
    """The id of a task, in the form of a UUID that can be read back.

    Args:
        run: Which run it belongs to, 0 to 2**32 - 1.
        number: Its number in the run, from 0.
    """
    return f"{number * _SPREAD & 0xFFFFFFFF:08x}-{run >> 16:04x}-{run & 0xFFFF:04x}-0000-{number:012x}"


def task_ids(run: int, count: int) -> Iterator[str]:
    """The ids of all tasks of a run, in order."""
    return (task_id(run, number) for number in range(count))


class Recorder:
    """Appends records to a file; opened at the first use, in whichever process that is."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def __call__(self, identity: str) -> None:
        """Record that the task with this id runs now."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        run = int(identity[9:13] + identity[14:18], 16)
        os.write(self._fd, RECORD.pack(run, int(identity[24:], 16), time.monotonic()))


@dataclass(frozen=True)
class RunRecord:
    """What is known about one run.

    Attributes:
        first: When the first task ran, in seconds; 0 if none did.
        last: When the last one did.
        missing: How many tasks never ran.
        repeated: How many executions were one too many.
    """

    first: float
    last: float
    missing: int
    repeated: int

    @property
    def flaw(self) -> str | None:
        """What is wrong with the run, or None if every task ran exactly once."""
        flaws = []
        if self.missing:
            flaws.append(f"{self.missing} tasks never ran")
        if self.repeated:
            flaws.append(f"{self.repeated} runs too many")
        return ", ".join(flaws) or None


def count(path: Path) -> int:
    """How many records the file holds; cheap enough to be asked again and again."""
    try:
        return path.stat().st_size // RECORD.size
    except FileNotFoundError:
        return 0


def evaluate(path: Path, run: int, tasks: int) -> RunRecord:
    """Read the records of one run.

    Args:
        path: The file.
        run: The run; records of others are left out.
        tasks: How many tasks the run had.
    """
    records: Iterable[tuple[int, int, float]] = RECORD.iter_unpack(path.read_bytes()) if path.exists() else ()
    runs: Counter[int] = Counter()
    times = []
    for its_run, number, moment in records:
        if its_run == run:
            runs[number] += 1
            times.append(moment)
    known = sum(1 for number in runs if number < tasks)
    return RunRecord(
        first=min(times, default=0.0),
        last=max(times, default=0.0),
        missing=tasks - known,
        repeated=len(times) - known,
    )
