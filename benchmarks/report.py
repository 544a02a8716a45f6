"""The report: for people on the terminal, for programs in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import Summary, ratio, summarise
from benchmarks.measurement import Measurement, Sample, Settings
from benchmarks.table import aligned

RESULTS = Path(__file__).resolve().parent / "results"

#: The broker that the others are compared with.
OURS = "pgbroker"

#: Samples by broker, in the order of the brokers.
Samples = Mapping[str, Sequence[Sample]]


def measurement_text(measurement: Measurement, samples: Samples) -> str:
    """The table of one measurement, and below it what did not count."""
    summaries = {broker: summarise(taken) for broker, taken in samples.items()}
    header = ("broker", measurement.unit, "lowest", "highest", "CPU µs", "rounds", f"{OURS} is")
    rows = [_row(broker, summary, summaries.get(OURS)) for broker, summary in summaries.items()]
    wrong = [f"WRONG {broker}: {flaw}" for broker, summary in summaries.items() for flaw in summary.flaws]
    return "\n".join([measurement.title, "", aligned(header, rows), *wrong])


def _row(broker: str, summary: Summary, ours: Summary | None) -> list[str]:
    multiple = None if broker == OURS else ratio(ours, summary)
    return [
        broker,
        "WRONG" if summary.median is None else _number(summary.median),
        _number(summary.lowest),
        _number(summary.highest),
        _number(summary.cpu_us),
        str(summary.taken) if not summary.flaws else f"{summary.counted} of {summary.taken}",
        "" if multiple is None else f"{multiple:.2f} x",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def facts_text(facts: Mapping[str, str]) -> str:
    """Facts, one a line."""
    width = max(map(len, facts), default=0)
    return "\n".join(f"{name.ljust(width)}  {fact}" for name, fact in facts.items())


def as_document(
    facts: Mapping[str, str], settings: Settings, results: Sequence[tuple[Measurement, Samples]]
) -> dict[str, Any]:
    """Everything, as JSON can hold it."""
    return {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "facts": dict(facts),
        "settings": asdict(settings),
        "measurements": {measurement.name: _measured(measurement, samples) for measurement, samples in results},
    }


def _measured(measurement: Measurement, samples: Samples) -> dict[str, Any]:
    summaries = {broker: summarise(taken) for broker, taken in samples.items()}
    return {
        "unit": measurement.unit,
        "brokers": {
            broker: {
                **asdict(summary),
                "samples": [asdict(sample) for sample in samples[broker]],
                "ratio_of_pgbroker": None if broker == OURS else ratio(summaries.get(OURS), summary),
            }
            for broker, summary in summaries.items()
        },
    }


def write(document: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write the document to a new file of the folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path
