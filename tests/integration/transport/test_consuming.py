"""Consumers, prefetch windows and acknowledgements of plain kombu."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection, Consumer, Producer, Queue

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Quiet = Callable[[Connection], None]


def test_a_simple_queue_puts_and_gets(connection: Connection, name: str) -> None:
    with closing(connection.SimpleQueue(name)) as queue:
        queue.put({"n": 1})
        assert queue.qsize() == 1
        message = queue.get(timeout=5)
        assert message.payload == {"n": 1}
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get(block=False)
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.1)


def test_reject_requeue_and_dead_letter(channel: Any, name: str, module_database: Any) -> None:
    Producer(channel).publish("again", routing_key=name)
    first = channel.basic_get(name)
    assert first.delivery_info["redelivered"] is False
    first.requeue()
    second = channel.basic_get(name)
    assert second.delivery_info["redelivered"] is True
    assert second.delivery_info["attempts"] == 2
    second.reject()
    assert channel.basic_get(name) is None
    with closing(module_database.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("select status::text, last_error from pgbroker.jobs where queue = %s", (name,))
        assert cursor.fetchall() == [("DEAD", "rejected by its consumer")]


def test_what_a_closed_channel_did_not_acknowledge_comes_back(connection: Connection, name: str) -> None:
    Producer(connection.channel()).publish("kept", routing_key=name)
    first = connection.channel()
    assert first.basic_get(name).payload == "kept"
    other = connection.channel()
    assert other.basic_get(name) is None
    first.close()
    again = other.basic_get(name)
    assert again.payload == "kept"
    again.ack()


def test_honours_the_prefetch_window(connection: Connection, name: str, drain: Drain, assert_quiet: Quiet) -> None:
    channel = connection.channel()
    for number in range(5):
        Producer(channel).publish(number, routing_key=name)
    got: list[Any] = []
    consumer = Consumer(channel, [Queue(name)], on_message=got.append, prefetch_count=2)
    with consumer:
        drain(connection, 2)
        assert_quiet(connection)
        got[0].ack()
        drain(connection, 1)
        assert_quiet(connection)
        for message in got[1:]:
            message.ack()
        drain(connection, 2)
    assert [message.payload for message in got] == [0, 1, 2, 3, 4]


def test_fills_the_window_message_by_message(connection: Connection, name: str, drain: Drain) -> None:
    """A consumer that gathers a batch before it acknowledges gets all of it."""
    channel = connection.channel()
    got: list[Any] = []
    with Consumer(channel, [Queue(name)], on_message=got.append, prefetch_count=10):
        for number in range(10):
            Producer(connection.channel()).publish(number, routing_key=name)
            drain(connection, 1, 2)
        got[-1].channel.basic_ack(got[-1].delivery_tag, multiple=True)
    assert channel.queue_declare(name, passive=True).message_count == 0
    assert channel.basic_get(name) is None


def test_consumes_without_acknowledgements(connection: Connection, name: str, drain: Drain) -> None:
    got: list[Any] = []
    with Consumer(connection, [Queue(name)], on_message=lambda m: got.append(m.payload), no_ack=True):
        for number in range(3):
            Producer(connection.channel()).publish(number, routing_key=name)
        drain(connection, 3)
    assert got == [0, 1, 2]
    assert connection.channel().basic_get(name) is None


def test_two_connections_share_a_queue(connect: Connect, name: str) -> None:
    got: list[int] = []
    ends = [connect(application_name=f"end {number}") for number in range(2)]
    with Producer(ends[0].channel()) as producer:
        for number in range(40):
            producer.publish(number, routing_key=name)
    consumers = [
        Consumer(end, [Queue(name)], on_message=lambda m: (got.append(m.payload), m.ack()), prefetch_count=3)
        for end in ends
    ]
    with consumers[0], consumers[1]:
        for end in itertools.cycle(ends):
            with contextlib.suppress(socket.timeout):
                end.drain_events(timeout=0.5)
            if len(got) == 40:
                break
    assert sorted(got) == list(range(40))


def test_a_consumer_is_woken_by_a_publish(connect: Connect, name: str, drain: Drain) -> None:
    consuming = connect(poll_interval=60)
    got: list[float] = []
    with Consumer(consuming, [Queue(name)], on_message=lambda m: (got.append(time.monotonic()), m.ack())):
        with pytest.raises(socket.timeout):
            consuming.drain_events(timeout=1.2)  # past the quick looks
        sent: list[float] = []

        def publish() -> None:
            with Connection(consuming.as_uri(include_password=True)) as other:
                Producer(other.channel()).publish({}, routing_key=name)
                sent.append(time.monotonic())

        thread = threading.Timer(0.3, publish)
        thread.start()
        drain(consuming, 1)
        thread.join()
    assert got[0] - sent[0] < 0.2


def test_a_process_that_has_celerys_worker_loaded_is_no_worker_yet(connect: Connect, name: str) -> None:
    """What it acknowledged and what it left must be known at once, not after a while."""
    importlib.import_module("celery.worker.consumer.consumer")
    connection = connect(application_name="loaded")
    for number in range(2):
        Producer(connection.channel()).publish(number, routing_key=name)
    channel = connection.channel()
    channel.basic_get(name).ack()
    assert channel.basic_get(name).payload == 1
    channel.close()
    other = connect().channel()
    assert other.basic_get(name, no_ack=True).payload == 1
    assert other.basic_get(name) is None
