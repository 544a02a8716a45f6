"""``python -m benchmarks.events``: what it costs a worker to send events, unheard and with Flower listening.

Each round measures the worker without events, with them, and with Flower, in turn, and compares within the round.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import socket
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import consume, facts, postgres_target
from benchmarks.brokers import Broker, all_brokers, usable
from benchmarks.measurement import Sample, Settings
from benchmarks.processes import ProcessFailed, python_process, tail
from benchmarks.table import aligned

MODES = ("without", "unheard", "flower")
_START_SECONDS = 60.0
_HEAR_SECONDS = 60.0


class Flower:
    """A running Flower."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str) -> str:
        """A page, or nothing if it does not answer."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=30) as reply:
                text: str = reply.read().decode()
                return text
        except urllib.error.URLError:
            return ""

    def succeeded(self) -> int:
        """How many tasks it has heard succeed."""
        pattern = r'^flower_events_total\{.*type="task-succeeded".*\} (\S+)$'
        found = re.findall(pattern, self.ask("/metrics"), re.MULTILINE)
        return int(sum(map(float, found)))

    def wait_for(self, tasks: int) -> tuple[int, float]:
        """Wait until it has heard so many tasks succeed.

        Returns:
            How many it has heard, and after how many seconds.
        """
        began = time.monotonic()
        while (heard := self.succeeded()) < tasks and time.monotonic() - began < _HEAR_SECONDS:
            time.sleep(0.05)
        return heard, time.monotonic() - began


@contextmanager
def running_flower(broker: Broker, folder: Path) -> Iterator[Flower]:
    """Run Flower for the length of the block.

    Raises:
        ProcessFailed: It did not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "flower.log"
    words = ["-m", "celery", "-A", "benchmarks.bench_app", "flower", "--address=127.0.0.1", f"--port={port}"]
    with python_process(words, broker.environment(), log=log) as process:
        flower = Flower(port)
        deadline = time.monotonic() + _START_SECONDS
        while not flower.ask("/healthcheck"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ProcessFailed(f"Flower did not start:\n{tail(log)}")
            time.sleep(0.1)
        yield flower


def sample(broker: Broker, settings: Settings, mode: str) -> tuple[Sample, str]:
    """Take one sample.

    Args:
        broker: The broker.
        settings: What the user chose.
        mode: One of :data:`MODES`.

    Returns:
        The sample, and what Flower heard of it.
    """
    if mode == "without":
        return consume.sample(broker, settings), ""
    settings = dataclasses.replace(settings, worker_options=("--task-events",))
    if mode == "unheard":
        return consume.sample(broker, settings), ""
    with tempfile.TemporaryDirectory(prefix="pgbroker-bench-") as name, running_flower(broker, Path(name)) as flower:
        taken = consume.sample(broker, settings)
        tasks = settings.tasks + consume.WARM_UP_TASKS
        heard, seconds = flower.wait_for(tasks)
    return taken, f"heard {heard} of {tasks} tasks, the last {seconds:.1f} s after the worker's end"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report.

    Returns:
        0; 1 if a figure was wrong; 2 if there is nothing to measure.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events", description=__doc__)
    add = parser.add_argument
    add("--only", default="pgbroker", metavar="NAME,...", help="brokers to measure (default: %(default)s)")
    add("--tasks", type=int, default=5000, help="tasks per sample (default: %(default)s)")
    add("--rounds", type=int, default=5, help="samples per broker and mode (default: %(default)s)")
    add("--concurrency", type=int, default=2, help="pool processes of the worker (default: %(default)s)")
    add("--pool", choices=("prefork", "threads", "solo"), default="prefork", help="default: %(default)s")
    options = parser.parse_args(arguments)
    settings = Settings(options.tasks, options.concurrency, pool=options.pool)
    rates: dict[tuple[str, str], list[Sample]] = {}
    with ExitStack() as cleanup:
        known = all_brokers(postgres_target.resolve(None, cleanup))
        names = options.only.split(",")
        brokers = usable((one for one in known if one.name in names and one.stores and one.consumes), print)
        if not brokers:
            return 2
        for number in range(1, options.rounds + 1):
            for broker in brokers:
                for mode in MODES if number % 2 else reversed(MODES):
                    taken, remark = sample(broker, settings, mode)
                    rates.setdefault((broker.name, mode), []).append(taken)
                    said = taken.flaw or f"{taken.value:,.0f} tasks/s, {taken.cpu_us:,.0f} us"
                    print(number, broker.name, mode, said, remark, file=sys.stderr, flush=True)
    machine = f"{os.cpu_count()} CPUs, load {facts.load():.1f}"
    print(f"{settings.tasks} tasks, {settings.pool} {settings.concurrency}, {machine}")
    rows = []
    for broker in brokers:
        base = rates[broker.name, "without"]
        for mode in MODES:
            taken_all = rates[broker.name, mode]
            ratios = [one.value / other.value for one, other in zip(taken_all, base, strict=True) if other.value]
            rows.append(
                (
                    f"{broker.name} {mode}",
                    f"{statistics.median(one.value for one in taken_all):,.0f}",
                    f"{statistics.median(one.cpu_us or 0 for one in taken_all):,.0f}",
                    f"{statistics.median(ratios):.2f}",
                    f"{min(ratios):.2f} to {max(ratios):.2f}",
                )
            )
    print(aligned(("", "tasks/s", "CPU us/task", "ratio", "of the rounds"), rows))
    return int(any(one.flaw for taken_all in rates.values() for one in taken_all))


if __name__ == "__main__":
    sys.exit(main())
