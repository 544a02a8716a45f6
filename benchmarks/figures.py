"""From samples to figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measurement import Sample


@dataclass(frozen=True)
class Summary:
    """What the samples of one broker come to.

    Attributes:
        median: Of the samples that count; None if none does.
        lowest: The smallest of them.
        highest: The largest.
        cpu_us: Median of the CPU time per task, in microseconds; None where it is not known.
        counted: How many count.
        flaws: Why the others do not, one text per sample.
    """

    median: float | None
    lowest: float | None
    highest: float | None
    cpu_us: float | None
    counted: int
    flaws: tuple[str, ...]

    @property
    def taken(self) -> int:
        """How many samples there are."""
        return self.counted + len(self.flaws)


def summarise(samples: Sequence[Sample]) -> Summary:
    """Put the samples of one broker together; those with a flaw do not count."""
    valid = [sample for sample in samples if sample.flaw is None]
    values = [sample.value for sample in valid]
    cpu = [sample.cpu_us for sample in valid if sample.cpu_us is not None]
    return Summary(
        median=statistics.median(values) if values else None,
        lowest=min(values, default=None),
        highest=max(values, default=None),
        cpu_us=statistics.median(cpu) if cpu else None,
        counted=len(values),
        flaws=tuple(sample.flaw for sample in samples if sample.flaw is not None),
    )


def ratio(ours: Summary | None, other: Summary) -> float | None:
    """Our median as a multiple of another one; None if one of them is missing."""
    if ours is None or ours.median is None or not other.median:
        return None
    return ours.median / other.median
