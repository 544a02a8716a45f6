"""kombu's API without Celery: simple queues, consumers as mixins, pools, and what a cancelled consumer gets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.common import eventloop, itermessages
from kombu.mixins import ConsumerMixin, ConsumerProducerMixin
from kombu.pools import connections, producers
from kombu.pools import reset as reset_pools

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Quiet = Callable[[Connection], None]
Bodies = Callable[[Any, str], list[Any]]
Count = Callable[[Any, str], int]

WAIT_SECONDS = 15


class Collector(ConsumerMixin):
    """Gathers what comes in, and stops after so many messages."""

    def __init__(self, connection: Connection, queue: Queue) -> None:
        self.connection = connection
        self.queue = queue
        self.got: list[Any] = []
        self.errors: list[BaseException] = []
        self.is_ready = threading.Event()
        self.has_some = threading.Event()

    def get_consumers(self, consumer_class: Any, channel: Any) -> list[Consumer]:
        return [consumer_class(queues=[self.queue], callbacks=[self.on_message], prefetch_count=10)]

    def on_consume_ready(self, connection: Connection, channel: Any, consumers: Any, **_: Any) -> None:
        self.is_ready.set()

    def on_connection_error(self, exc: BaseException, interval: float) -> None:
        self.errors.append(exc)

    def on_message(self, body: Any, message: Any) -> None:
        self.got.append(body)
        message.ack()
        self.has_some.set()


@pytest.fixture
def run() -> Iterator[Callable[[ConsumerMixin], threading.Thread]]:
    """Run a consumer in a thread until the test is over."""
    running: list[tuple[ConsumerMixin, threading.Thread]] = []

    def run(mixin: ConsumerMixin) -> threading.Thread:
        thread = threading.Thread(target=mixin.run)
        running.append((mixin, thread))
        thread.start()
        return thread

    yield run
    for mixin, thread in running:
        mixin.should_stop = True
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def test_a_simple_buffer_keeps_nothing(connection: Connection, channel: Any, name: str) -> None:
    with closing(connection.SimpleBuffer(name)) as buffer:
        for number in range(3):
            buffer.put(number)
        assert [buffer.get(timeout=5).payload for _ in range(2)] == [0, 1]
    with pytest.raises(connection.channel_errors):
        channel.queue_declare(name, passive=True)


def test_a_closed_simple_queue_leaves_what_it_was_not_asked_for(
    connection: Connection, channel: Any, name: str, bodies: Bodies
) -> None:
    """Others get it at once, though the connection stays open."""
    with closing(connection.SimpleQueue(name)) as queue:
        for number in range(5):
            queue.put(number)
        message = queue.get(timeout=5)
        assert message.payload == 0
        message.ack()
    assert bodies(channel, name) == [1, 2, 3, 4]


def test_a_consumer_without_limit_gets_what_is_on_its_way(connection: Connection, channel: Any, name: str) -> None:
    for number in range(5):
        Producer(channel).publish(number, routing_key=name)
    got: list[Any] = []
    with Consumer(connection, [Queue(name)], on_message=got.append):
        connection.drain_events(timeout=5)
        assert [message.payload for message in got] == [0]
    assert [message.payload for message in got] == [0, 1, 2, 3, 4]
    assert channel.basic_get(name) is None
    for message in reversed(got):
        message.requeue()


@pytest.mark.parametrize("options", [{"prefetch_count": 3}, {"no_ack": True}], ids=lambda options: next(iter(options)))
def test_a_consumer_that_cannot_give_back_or_has_a_limit_gets_no_more(
    connection: Connection, channel: Any, name: str, bodies: Bodies, options: dict[str, Any]
) -> None:
    for number in range(5):
        Producer(channel).publish(number, routing_key=name)
    got: list[Any] = []
    with Consumer(connection, [Queue(name)], on_message=lambda m: got.append(m.payload), **options):
        connection.drain_events(timeout=5)
    connection.default_channel.close()
    assert got == [0]
    assert sorted(got + bodies(channel, name)) == ([0, 1, 2, 3, 4] if "no_ack" in options else [0, 0, 1, 2, 3, 4])


def test_a_callback_that_cancels_gets_no_more(connection: Connection, channel: Any, name: str, bodies: Bodies) -> None:
    for number in range(3):
        Producer(channel).publish(number, routing_key=name)
    got: list[Any] = []

    def take(message: Any) -> None:
        got.append(message.payload)
        message.ack()
        consumer.cancel()

    with Consumer(connection, [Queue(name)], on_message=take) as consumer:
        connection.drain_events(timeout=5)
    assert got == [0]
    rest: list[Any] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(rest) < 2:
        assert time.monotonic() < deadline
        rest += bodies(channel, name)
    assert rest == [1, 2]


def test_what_a_closed_connection_held_comes_back_in_its_place(connect: Connect, name: str, bodies: Bodies) -> None:
    other = connect().channel()
    for number in range(4):
        Producer(other).publish(number, routing_key=name)
    leaving = connect(application_name="leaving")
    assert [leaving.channel().basic_get(name).payload for _ in range(2)] == [0, 1]
    got: list[Any] = []
    with Consumer(leaving, [Queue(name)], on_message=got.append, prefetch_count=1):
        leaving.drain_events(timeout=5)
        leaving.release()
    assert [message.payload for message in got] == [2]
    first = other.basic_get(name)
    assert (first.payload, first.delivery_info["redelivered"]) == (0, True)
    first.ack()
    assert bodies(other, name) == [1, 2, 3]


def test_iterates_over_messages(connection: Connection, name: str) -> None:
    queue = Queue(name)
    channel = connection.channel()
    for number in range(3):
        Producer(channel).publish(number, routing_key=name)
    got = [body for body, _ in itermessages(connection, channel, queue, limit=2, timeout=5, no_ack=True)]
    assert got == [0, 1]
    with Consumer(connection, [queue], on_message=lambda m: (got.append(m.payload), m.ack()), prefetch_count=1):
        list(eventloop(connection, limit=2, timeout=1, ignore_timeouts=True))
    assert got == [0, 1, 2]


def test_a_mixin_consumes_until_it_is_told_to_stop(connect: Connect, name: str, run: Any) -> None:
    collector = Collector(connect(application_name="collector"), Queue(name))
    run(collector)
    assert collector.is_ready.wait(WAIT_SECONDS)
    Producer(connect().channel()).publish("one", routing_key=name)
    assert collector.has_some.wait(WAIT_SECONDS)
    assert collector.got == ["one"]


def test_a_mixin_goes_on_after_its_connection_was_cut(
    connect: Connect, name: str, run: Any, module_database: Any, rows: Any
) -> None:
    connection = connect(application_name="collector")
    collector = Collector(connection, Queue(name))
    run(collector)
    assert collector.is_ready.wait(WAIT_SECONDS)
    collector.is_ready.clear()
    rows(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name = 'collector' and datname = current_database()"
    )
    assert collector.is_ready.wait(WAIT_SECONDS)
    Producer(connect().channel()).publish("after", routing_key=name)
    assert collector.has_some.wait(WAIT_SECONDS)
    assert collector.got == ["after"]


def test_a_mixin_answers_requests(connect: Connect, name: str, run: Any) -> None:
    """The pattern of kombu's examples/rpc_tut6: a reply queue, ``reply_to`` and ``correlation_id``."""

    class Server(ConsumerProducerMixin):
        def __init__(self, connection: Connection) -> None:
            self.connection = connection

        def get_consumers(self, consumer_class: Any, channel: Any) -> list[Consumer]:
            return [consumer_class(queues=[Queue(name)], on_message=self.answer, prefetch_count=1)]

        def answer(self, message: Any) -> None:
            self.producer.publish(
                message.payload * 2,
                exchange="",
                routing_key=message.properties["reply_to"],
                correlation_id=message.properties["correlation_id"],
            )
            message.ack()

    run(Server(connect(application_name="server")))
    client = connect(application_name="client")
    reply_to = Queue(exclusive=True, auto_delete=True)(client.channel())
    reply_to.declare()
    assert reply_to.name
    Producer(client.channel()).publish(
        21, routing_key=name, reply_to=reply_to.name, correlation_id="q1", declare=[Queue(name)]
    )
    got: list[Any] = []
    with Consumer(client, [reply_to], on_message=got.append, no_ack=True):
        client.drain_events(timeout=WAIT_SECONDS)
    assert [(message.payload, message.properties["correlation_id"]) for message in got] == [(42, "q1")]


def test_pools_of_connections_and_producers(module_database: Any, connect: Connect, name: str, bodies: Bodies) -> None:
    connection = Connection(module_database.url, transport_options={"application_name": "pooled"})
    try:
        for number in range(3):
            with producers[connection].acquire(block=True) as producer:
                exchange = Exchange(name, "direct")
                producer.publish(number, exchange=exchange, routing_key="k", declare=[Queue(name, exchange, "k")])
        with connections[connection].acquire(block=True) as pooled:
            assert bodies(pooled.default_channel, name) == [0, 1, 2]
    finally:
        reset_pools()


def test_drains_nothing_without_consumers(connection: Connection) -> None:
    connection.connect()
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.1)


def test_a_reply_to_a_queue_that_is_gone_vanishes(connection: Connection, name: str, rows: Any) -> None:
    """It would lie in a job queue for ever: nobody will ever ask for it. A request makes the queue, as ever."""
    producer = connection.Producer()
    producer.publish({"result": 1}, exchange="", routing_key=name, correlation_id="1", delivery_mode=1)
    assert rows("select pgbroker.queue_kind(%s)", name) == [(None,)]
    producer.publish({"ask": 1}, exchange="", routing_key=name, correlation_id="1", reply_to="answers", delivery_mode=1)
    assert rows("select pgbroker.queue_kind(%s)", name) == [("job",)]
    producer.publish({"result": 2}, exchange="", routing_key=name, correlation_id="1", delivery_mode=1)
    assert rows("select count(*) from pgbroker.jobs_live where queue = %s", name) == [(2,)]
    producer.publish({"traced": 3}, exchange="", routing_key=f"{name}-traced", correlation_id="1")
    assert rows("select pgbroker.queue_kind(%s)", f"{name}-traced") == [("job",)]


def test_results_by_rpc_come_to_who_asks_and_to_nobody_else(module_database: Any, name: str, rows: Any) -> None:
    app = Celery("rpc", broker=module_database.url, backend="rpc://", set_as_current=False)
    queue, request = app.backend.oid, Context({"reply_to": app.backend.oid, "correlation_id": name})
    app.backend.store_result(name, 1, "SUCCESS", request=request)
    assert rows("select pgbroker.queue_kind(%s)", queue) == [(None,)]
    waiting = app.AsyncResult(name)
    with app.amqp.producer_pool.acquire() as producer:
        app.backend.on_task_call(producer, name)
    app.backend.store_result(name, 2, "SUCCESS", request=request)
    assert waiting.get(timeout=10) == 2
    app.backend.result_consumer.stop()
    app.close()
