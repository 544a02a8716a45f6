"""What a measurement is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.brokers import Broker


@dataclass(frozen=True)
class Settings:
    """What the user chose for all measurements.

    Attributes:
        tasks: Tasks per sample.
        concurrency: Pool processes (or threads) of a worker.
        prefetch: ``worker_prefetch_multiplier``.
        pool: Celery's name of the pool.
        worker_options: More words for the command line of a worker.
    """

    tasks: int = 5000
    concurrency: int = 2
    prefetch: int = 4
    pool: str = "prefork"
    worker_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One figure: of one broker, in one round.

    Attributes:
        value: The figure, in the measurement's unit.
        flaw: Why it does not count, or None if it does.
        cpu_us: CPU time per task of the process that is the bottleneck, in microseconds: the worker's main process, or
            the publisher. Hardly disturbed by what else the machine does, unlike the figure itself.
    """

    value: float
    flaw: str | None = None
    cpu_us: float | None = None


@dataclass(frozen=True)
class Measurement:
    """Something that can be measured on every broker.

    Attributes:
        name: Its name on the command line and in the result file.
        title: Its heading.
        unit: Of its figures.
        run: Takes one sample.
        applies: Whether it says something about a broker.
    """

    name: str
    title: str
    unit: str
    run: Callable[[Broker, Settings], Sample]
    applies: Callable[[Broker], bool] = lambda broker: True
