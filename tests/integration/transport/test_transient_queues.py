"""Transient queues: how they end, and what becomes of their messages that nobody acknowledges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Consumer, Producer, Queue

from pgbroker import errors

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Quiet = Callable[[Connection], None]
Bodies = Callable[[Any, str], list[Any]]
Count = Callable[[Any, str], int]

#: What makes a queue transient, and what leaves it a queue of jobs.
KINDS = [pytest.param({}, id="job"), pytest.param({"expires": 60.0}, id="transient")]


# -- exclusive and auto-delete ----------------------------------------------------------------------


def test_an_exclusive_queue_ends_with_its_connection(connect: Connect, name: str, count: Count) -> None:
    owning, looking = connect(application_name="owner"), connect().channel()
    Queue(name, exclusive=True)(owning.channel()).declare()
    Queue(f"{name}-2")(owning.channel()).declare()
    assert count(looking, name) == 0
    owning.release()
    with pytest.raises(errors.QueueNotFound):
        count(looking, name)
    assert count(looking, f"{name}-2") == 0


def test_an_auto_delete_queue_goes_with_its_last_consumer(connect: Connect, name: str, count: Count) -> None:
    ends = [connect(application_name=f"end {number}") for number in range(2)]
    consumers = [Consumer(end, [Queue(name, auto_delete=True)], accept=["json"]) for end in ends]
    looking = connect().channel()
    assert count(looking, name) == 0, "it waits for its first consumer"
    with consumers[0]:
        with consumers[1]:
            pass
        assert count(looking, name) == 0
    with pytest.raises(errors.QueueNotFound):
        count(looking, name)


# -- transient messages -----------------------------------------------------------------------------


def test_a_transient_message_can_be_requeued(channel: Any, name: str, bodies: Bodies) -> None:
    Queue(name, expires=60.0)(channel).declare()
    for number in range(2):
        Producer(channel).publish(number, routing_key=name)
    first = channel.basic_get(name)
    assert (first.payload, first.delivery_info["redelivered"]) == (0, False)
    first.requeue()
    again = channel.basic_get(name)
    assert (again.payload, again.delivery_info["redelivered"]) == (0, True)
    again.ack()
    assert bodies(channel, name) == [1]


def test_a_closed_channel_gives_transient_messages_back_in_order(
    connection: Connection, name: str, bodies: Bodies, count: Count
) -> None:
    channel = connection.channel()
    Queue(name, expires=60.0)(channel).declare()
    for number in range(3):
        Producer(channel).publish(number, routing_key=name)
    reading = connection.channel()
    assert [reading.basic_get(name).payload for _ in range(2)] == [0, 1]
    assert count(channel, name) == 1
    reading.close()
    assert bodies(channel, name) == [0, 1, 2]


def test_the_prefetch_window_holds_for_transient_messages(
    connect: Connect, name: str, drain: Drain, assert_quiet: Quiet
) -> None:
    slow, fast = connect(application_name="slow"), connect(application_name="fast")
    queue = Queue(name, expires=60.0)
    got: dict[str, list[Any]] = {"slow": [], "fast": []}
    with Consumer(slow, [queue], on_message=got["slow"].append, prefetch_count=2):
        for number in range(6):
            Producer(slow.channel()).publish(number, routing_key=name)
        drain(slow, 2)
        assert_quiet(slow)
        with Consumer(fast, [queue], on_message=lambda m: (got["fast"].append(m.payload), m.ack())):
            drain(fast, 4)
        got["slow"][0].ack()
        Producer(slow.channel()).publish(6, routing_key=name)
        drain(slow, 1)
        assert_quiet(slow)
    assert [message.payload for message in got["slow"]] == [0, 1, 6]
    assert got["fast"] == [2, 3, 4, 5]
