"""Takes the samples, broker by broker, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.brokers import Broker
from benchmarks.measurement import Measurement, Sample, Settings


def take(
    measurement: Measurement,
    brokers: Sequence[Broker],
    settings: Settings,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, list[Sample]]:
    """Take the samples of one measurement; in each round every broker has its turn.

    Args:
        measurement: What is measured.
        brokers: The brokers; those that it does not apply to are left out.
        settings: What the user chose.
        rounds: How often.
        say: Takes a line on the progress.

    Returns:
        The samples by broker.
    """
    partakers = [broker for broker in brokers if measurement.applies(broker)]
    samples: dict[str, list[Sample]] = {broker.name: [] for broker in partakers}
    for number in range(1, rounds + 1):
        for broker in partakers:
            sample = measurement.run(broker, settings)
            samples[broker.name].append(sample)
            figure = f"{sample.value:,.0f} {measurement.unit}" if sample.flaw is None else f"WRONG: {sample.flaw}"
            say(f"{measurement.name} {number}/{rounds} {broker.name}: {figure}")
    return samples
