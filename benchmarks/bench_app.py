"""The Celery application that the measured workers and publishers run."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_ready
from kombu import Exchange, Queue

from benchmarks import commands, null_transport
from benchmarks.environment import Environment
from benchmarks.records import Recorder

environment = Environment.from_variables(os.environ)
null_transport.register()

app = Celery("benchmarks", broker=environment.broker_url, set_as_current=False)
app.conf.update(
    broker_transport_options=environment.transport_options,
    broker_connection_retry_on_startup=False,
    task_ignore_result=True,
    task_queues=[Queue(name, Exchange(name, type="direct"), routing_key=name) for name in environment.queues],
    worker_enable_remote_control=False,
    worker_send_task_events=False,
)

_record = Recorder(environment.records)


@app.task(bind=True, name="benchmarks.noop")
def noop(self: Any) -> None:
    """Do nothing, and say when."""
    _record(self.request.id)


@worker_ready.connect(weak=False)
def take_commands(sender: Any, **_: Any) -> None:
    """Listen to the benchmark as soon as the worker is up."""
    if environment.command_fd >= 0:
        commands.listen(environment.command_fd, sender, noop)
