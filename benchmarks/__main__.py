"""``python -m benchmarks``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks import facts, postgres_target, report, rounds
from benchmarks.brokers import Broker, all_brokers, usable
from benchmarks.measurement import Settings
from benchmarks.registry import MEASUREMENTS


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare pgbroker with other brokers.")
    add = parser.add_argument
    add("--only", type=_names, metavar="NAME,...", help="brokers to measure (default: all that answer)")
    add("--measure", type=_names, metavar="NAME,...", help="measurements to take (default: all)")
    add("--tasks", type=_positive, default=5000, help="tasks per sample (default: %(default)s)")
    add("--rounds", type=_positive, default=3, help="samples per broker (default: %(default)s)")
    add("--pgbroker-url", help="default: PGBROKER_BENCH_URL, else a local server, else an embedded one")
    add("--concurrency", type=_positive, default=2, help="pool processes of the worker (default: %(default)s)")
    add("--prefetch", type=_positive, default=4, help="worker_prefetch_multiplier (default: %(default)s)")
    add("--pool", choices=("prefork", "threads", "solo"), default="prefork", help="default: %(default)s")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _broker_facts(brokers: Sequence[Broker]) -> dict[str, str]:
    found = {}
    for broker in brokers:
        try:
            found[broker.name] = broker.describe(broker.url)
        except Exception as error:  # a fact we cannot learn must not cost us the figures
            found[broker.name] = f"unknown ({type(error).__name__})"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report.

    Returns:
        0; 1 if a figure was wrong; 2 if there is nothing to measure.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    settings = Settings(options.tasks, options.concurrency, options.prefetch, options.pool)
    measurements = [one for one in MEASUREMENTS if not options.measure or one.name in options.measure]
    if unknown := set(options.measure or ()) - {one.name for one in MEASUREMENTS}:
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}")
    with ExitStack() as cleanup:
        wanted = not options.only or report.OURS in options.only
        url = postgres_target.resolve(options.pgbroker_url, cleanup) if wanted else "pgbroker://"
        known = all_brokers(url)
        if unknown := set(options.only or ()) - {broker.name for broker in known}:
            parser.error(f"no such broker: {', '.join(sorted(unknown))}")
        brokers = usable((one for one in known if not options.only or one.name in options.only), _say)
        if not brokers:
            _say("no broker to measure")
            return 2
        found = {**facts.machine(), **_broker_facts(brokers)}
        load_before = facts.load()
        results = [(one, rounds.take(one, brokers, settings, options.rounds, _say)) for one in measurements]
    found["load"] = f"{load_before:.2f} before, {facts.load():.2f} at the end"
    found["worker"] = f"{settings.pool}, concurrency {settings.concurrency}, prefetch multiplier {settings.prefetch}"
    print(report.facts_text(found))
    for measurement, samples in results:
        print(f"\n{report.measurement_text(measurement, samples)}")
    path = report.write(report.as_document(found, settings, results))
    print(f"\nwritten to {path}")
    return int(any(sample.flaw for _, taken in results for samples in taken.values() for sample in samples))


def _terminate(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
