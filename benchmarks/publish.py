"""How many tasks per second one process publishes, one ``apply_async`` after the other."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.brokers import Broker
from benchmarks.commands import Consume
from benchmarks.measurement import Measurement, Sample, Settings
from benchmarks.processes import ProcessFailed
from benchmarks.publisher import publish
from benchmarks.run_names import new_run, queue_name

WARM_UP_TASKS = 100


def sample(broker: Broker, settings: Settings) -> Sample:
    """Publish to a new queue, and see that everything arrived."""
    queue = queue_name(new_run(), "publish")
    loads = [Consume(queue, new_run(), WARM_UP_TASKS), Consume(queue, new_run(), settings.tasks)]
    expected = WARM_UP_TASKS + settings.tasks
    try:
        with tempfile.TemporaryDirectory(prefix="pgbroker-bench-") as folder:
            took = publish(broker.environment(queue), loads, Path(folder))[-1]
        arrived = broker.settled_count(queue, expected) if broker.stores else expected
    except ProcessFailed as failure:
        return Sample(0.0, str(failure))
    finally:
        if broker.stores:
            broker.delete(queue)
    flaw = None if arrived == expected else f"{arrived} of {expected} messages arrived"
    return Sample(settings.tasks / took.seconds, flaw, took.cpu_seconds / settings.tasks * 1e6)


PUBLISH = Measurement(
    name="publish",
    title="Publish: apply_async calls of one process, one by one",
    unit="messages/s",
    run=sample,
)
