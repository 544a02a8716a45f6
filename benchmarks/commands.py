"""How the benchmark directs a running worker: lines on a pipe, the same for every broker.

Celery's remote control would do too, but it is a broker feature and would load each broker differently.
When the pipe is closed the worker shuts down, also if that happens because the benchmark itself is gone.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, NamedTuple

from benchmarks import null_transport
from benchmarks.records import task_ids


class Consume(NamedTuple):
    """The one command: leave all queues and consume this one.

    Attributes:
        queue: Name of the queue, without blanks.
        run: The run its tasks belong to.
        tasks: How many it holds.
    """

    queue: str
    run: int
    tasks: int

    def encode(self) -> bytes:
        """The line that goes through the pipe."""
        return f"{self.queue} {self.run} {self.tasks}\n".encode()

    @classmethod
    def decode(cls, line: bytes) -> Consume:
        """Read a line back."""
        queue, run, tasks = line.decode().split()
        return cls(queue, int(run), int(tasks))


def listen(fd: int, consumer: Any, task: Any) -> None:
    """Start to obey the commands that come through a pipe, in a thread of its own.

    Args:
        fd: The end to read from.
        consumer: The worker's ``celery.worker.consumer.Consumer``.
        task: The task that the null transport makes its messages of.
    """
    threading.Thread(target=_listen, args=(fd, consumer, task), name="benchmark-commands", daemon=True).start()


def _listen(fd: int, consumer: Any, task: Any) -> None:
    # Not readline: its lock would be held in pool children that are forked meanwhile.
    pending = b""
    while chunk := os.read(fd, 4096):
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            consumer.call_soon(_consume, consumer, Consume.decode(line), task)
    os.kill(os.getpid(), signal.SIGTERM)
    # The event loop sleeps on until its next timer, up to five seconds later, unless something wakes it.
    consumer.call_soon(int)


def _consume(consumer: Any, command: Consume, task: Any) -> None:
    for queue in tuple(consumer.task_consumer.queues):
        consumer.cancel_task_queue(queue.name)
    if consumer.connection.transport.driver_type == null_transport.Transport.driver_type:
        task.apply_async(queue=command.queue)
        null_transport.load(command.queue, task_ids(command.run, command.tasks))
    consumer.add_task_queue(command.queue)
