"""How many no-op tasks per second a warm worker runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import records
from benchmarks.brokers import Broker
from benchmarks.commands import Consume
from benchmarks.measurement import Measurement, Sample, Settings
from benchmarks.processes import ProcessFailed
from benchmarks.publisher import publish
from benchmarks.run_names import new_run, queue_name
from benchmarks.worker import running_worker

WARM_UP_TASKS = 200
_START_SECONDS = 60.0
_IDLE_SECONDS = 20.0


def sample(broker: Broker, settings: Settings) -> Sample:
    """Load a queue, warm a worker up, send it to the queue and read the records of the tasks."""
    load = Consume(queue_name(new_run(), "load"), new_run(), settings.tasks)
    warm = Consume(queue_name(load.run, "warm"), new_run(), WARM_UP_TASKS)
    start = queue_name(load.run, "start")
    queues = (start, warm.queue, load.queue)
    with tempfile.TemporaryDirectory(prefix="pgbroker-bench-") as name:
        folder = Path(name)
        record = folder / "records"
        environment = broker.environment(*queues, records=str(record))
        try:
            if broker.stores:
                publish(environment, [load, warm], folder)
            with running_worker(environment, start, settings, folder) as worker:
                worker.consume(warm)
                if not worker.wait_for(WARM_UP_TASKS, idle_seconds=_START_SECONDS):
                    return Sample(0.0, "the warm-up did not end")
                cpu_before = worker.cpu_seconds()
                worker.consume(load)
                worker.wait_for(WARM_UP_TASKS + settings.tasks, idle_seconds=_IDLE_SECONDS)
                cpu_seconds = worker.cpu_seconds() - cpu_before
                stopped = worker.stop()
            left = broker.settled_count(load.queue, 0) if broker.stores else 0
        except ProcessFailed as failure:
            return Sample(0.0, str(failure))
        finally:
            if broker.stores:
                broker.delete(*queues)
        result = records.evaluate(record, load.run, settings.tasks)
    flaws = [result.flaw, f"{left} messages left in the queue" if left else None]
    flaws.append(None if stopped else "the worker had to be killed")
    took = result.last - result.first
    rate = (settings.tasks - 1) / took if took else 0.0
    return Sample(rate, ", ".join(flaw for flaw in flaws if flaw) or None, cpu_seconds / settings.tasks * 1e6)


CONSUME = Measurement(
    name="consume",
    title="Consume: no-op tasks run by one warm worker",
    unit="tasks/s",
    run=sample,
    applies=lambda broker: broker.consumes,
)
