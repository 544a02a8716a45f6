"""The brokers that are compared, in the order in which they take their turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import kombu

from benchmarks import facts, null_transport
from benchmarks.environment import Environment

RABBITMQ_URL = "pyamqp://guest:guest@127.0.0.1:5672//"
REDIS_URL = "redis://127.0.0.1:6379/8"

_CONNECT_SECONDS = 3
_COUNT_SECONDS = 5.0


@dataclass(frozen=True)
class Broker:
    """One broker in one configuration.

    Attributes:
        name: Its name in tables and for ``--only``.
        url: Where it is.
        transport_options: Celery's ``broker_transport_options``.
        describe: Says which server it is and how durable it is configured, given the URL.
        stores: Whether it keeps messages between processes; the null transport does not.
        consumes: Whether consuming is measured; no for variants that only publish differently.
    """

    name: str
    url: str
    describe: Callable[[str], str]
    transport_options: dict[str, Any] = field(default_factory=dict)
    stores: bool = True
    consumes: bool = True

    def environment(self, *queues: str, records: str = "") -> Environment:
        """Settings for a process that works with this broker."""
        return Environment(self.url, self.transport_options, queues, records)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with kombu.Connection(
            self.url, connect_timeout=_CONNECT_SECONDS, transport_options=dict(self.transport_options)
        ) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=_CONNECT_SECONDS)
            yield connection.default_channel

    def problem(self) -> str | None:
        """Why it cannot be used, in one line, or None if it can."""
        try:
            with self._channel():
                return None
        except Exception as error:  # whatever a transport raises is a reason to leave it out
            text = str(error).strip() or type(error).__name__
            return text.splitlines()[0]

    def message_count(self, queue: str) -> int:
        """Messages waiting in a queue; 0 if there is no such queue."""
        with self._channel() as channel:
            try:
                return int(channel.queue_declare(queue=queue, passive=True).message_count)
            except channel.connection.client.channel_errors:
                return 0

    def settled_count(self, queue: str, expected: int) -> int:
        """Messages waiting in a queue, once the broker has had the time to arrive at the number expected."""
        deadline = time.monotonic() + _COUNT_SECONDS
        while (count := self.message_count(queue)) != expected and time.monotonic() < deadline:
            time.sleep(0.1)
        return count

    def delete(self, *queues: str) -> None:
        """Delete queues with their messages, and the exchanges of the same names."""
        for queue in queues:
            with self._channel() as channel:
                bound = kombu.Queue(queue, kombu.Exchange(queue, type="direct"), routing_key=queue)(channel)
                bound.declare()  # kombu's virtual transports delete only what they know to be bound
                for entity in (bound, bound.exchange):
                    try:
                        entity.delete()
                    except channel.connection.client.channel_errors:
                        pass  # it never came into being


def all_brokers(pgbroker_url: str) -> list[Broker]:
    """Every broker the benchmark knows, whether it answers or not.

    ``PGBROKER_BENCH_RABBITMQ_URL`` and ``PGBROKER_BENCH_REDIS_URL`` replace the addresses of the others.
    """
    rabbitmq = os.environ.get("PGBROKER_BENCH_RABBITMQ_URL", RABBITMQ_URL)
    redis = os.environ.get("PGBROKER_BENCH_REDIS_URL", REDIS_URL)
    null_transport.register()
    return [
        Broker("pgbroker", pgbroker_url, facts.postgres),
        Broker("rabbitmq", rabbitmq, facts.rabbitmq),
        Broker("rabbitmq-confirms", rabbitmq, facts.rabbitmq, {"confirm_publish": True}, consumes=False),
        Broker("redis", redis, facts.redis),
        Broker("null", "null://", lambda url: "no broker: Celery's own ceiling", stores=False),
    ]


def usable(brokers: Iterable[Broker], say: Callable[[str], None]) -> list[Broker]:
    """Those of the brokers that answer; says a line about each of the others."""
    found = []
    for broker in brokers:
        if problem := broker.problem():
            say(f"{broker.name} is left out: {problem}")
        else:
            found.append(broker)
    return found
