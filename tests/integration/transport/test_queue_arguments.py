"""Queue arguments as with RabbitMQ, on queues that hold jobs and on transient ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Producer, Queue

from pgbroker import errors
from pgbroker.transport import topology

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Quiet = Callable[[Connection], None]
Bodies = Callable[[Any, str], list[Any]]
Count = Callable[[Any, str], int]

#: What makes a queue transient, and what leaves it a queue of jobs.
KINDS = [pytest.param({}, id="job"), pytest.param({"expires": 60.0}, id="transient")]


# -- expiry -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("traits", KINDS)
def test_a_message_does_not_outlive_the_queues_ttl(
    channel: Any, name: str, traits: dict[str, Any], wait_for_expiry: Any, bodies: Bodies
) -> None:
    Queue(name, message_ttl=1, **traits)(channel).declare()
    producer = Producer(channel)
    producer.publish("one", routing_key=name)
    producer.publish("two", routing_key=name, expiration=60)
    assert channel.basic_get(name, no_ack=True).payload == "one"
    wait_for_expiry(name)
    assert bodies(channel, name) == []


def test_the_shorter_of_both_ttls_holds(channel: Any, name: str, rows: Any) -> None:
    Queue(name, message_ttl=3600)(channel).declare()
    for expiration in (60, 7200, None):
        Producer(channel).publish("x", routing_key=name, expiration=expiration)
    found = rows(
        "select round(extract(epoch from expires_at - enqueued_at))::int from pgbroker.jobs where queue = %s "
        "order by 1",
        name,
    )
    assert found == [(60,), (3600,), (3600,)]


def test_the_ttl_of_a_job_begins_when_it_is_due(channel: Any, name: str, rows: Any) -> None:
    """Elsewhere a message with an ETA leaves its queue at once and waits in a worker, where no TTL reaches it."""
    Queue(name, message_ttl=60)(channel).declare()
    headers = {"task": "t", "id": name, "eta": "2099-01-01T00:00:00+00:00"}
    Producer(channel).publish({}, routing_key=name, headers=headers)
    ((seconds,),) = rows(
        "select extract(epoch from expires_at - run_after)::int from pgbroker.jobs where queue = %s", name
    )
    assert seconds == 60


def test_a_queue_that_nobody_uses_goes_away(channel: Any, name: str, rows: Any, run_upkeep: Any, count: Count) -> None:
    Queue(name, expires=60.0)(channel).declare()
    ((first,),) = rows("select lives_until from pgbroker.transient_queues where name = %s", name)
    assert channel.basic_get(name) is None
    ((second,),) = rows("select lives_until from pgbroker.transient_queues where name = %s", name)
    assert second > first, "a basic.get is use"
    run_upkeep()
    assert count(channel, name) == 0
    rows("update pgbroker.transient_queues set lives_until = now() - interval '1 s' where name = %s", name)
    run_upkeep()
    with pytest.raises(errors.QueueNotFound):
        count(channel, name)


# -- priority and length ----------------------------------------------------------------------------


@pytest.mark.parametrize("traits", KINDS)
def test_priorities_above_the_queues_highest_are_lowered(
    channel: Any, name: str, traits: dict[str, Any], bodies: Bodies
) -> None:
    Queue(name, max_priority=3, **traits)(channel).declare()
    producer = Producer(channel)
    for priority in (1, 5, 9, 3, 0, 99):
        producer.publish(priority, routing_key=name, priority=priority)
    assert bodies(channel, name) == [5, 9, 3, 99, 1, 0]


@pytest.mark.parametrize("traits", KINDS)
def test_without_a_highest_there_are_ten_priorities(
    channel: Any, name: str, traits: dict[str, Any], bodies: Bodies
) -> None:
    Queue(name, **traits)(channel).declare()
    producer = Producer(channel)
    for priority in (0, 9, 4, 42, 4):
        producer.publish(priority, routing_key=name, priority=priority)
    assert bodies(channel, name) == [9, 42, 4, 4, 0]


def test_a_full_transient_queue_drops_its_oldest(channel: Any, name: str, bodies: Bodies) -> None:
    Queue(name, expires=60.0, max_length=2)(channel).declare()
    for number in range(5):
        Producer(channel).publish(number, routing_key=name)
    assert bodies(channel, name) == [3, 4]


def test_a_job_is_never_dropped_for_the_length_of_its_queue(
    channel: Any, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, count: Count
) -> None:
    monkeypatch.setattr(topology, "_logged", set())
    with caplog.at_level(logging.INFO, "pgbroker"):
        for _ in range(2):
            Queue(name, max_length=2)(channel).declare()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"queue argument 'x-max-length' (first seen on '{name}') has no meaning for")
    for number in range(5):
        Producer(channel).publish(number, routing_key=name)
    assert count(channel, name) == 5


# -- arguments in general ---------------------------------------------------------------------------


def test_unknown_arguments_are_accepted_and_logged_once(
    channel: Any, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "_logged", set())
    with caplog.at_level(logging.INFO, "pgbroker"):
        for queue in (name, f"{name}-2"):
            Queue(queue, queue_arguments={"x-queue-type": "quorum", "x-overflow": "reject-publish"})(channel).declare()
    assert sorted(record.getMessage().split(" (")[0] for record in caplog.records) == [
        "queue argument 'x-overflow'",
        "queue argument 'x-queue-type'",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": "soon"},
        {"x-message-ttl": -1},
        {"x-expires": 0},
        {"x-max-length": -5},
        {"x-max-priority": 256},
        {"x-dead-letter-exchange": "x" * 256},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_a_value_that_has_no_meaning_is_refused(
    channel: Any, name: str, arguments: dict[str, Any], count: Count
) -> None:
    with pytest.raises(ValueError, match=r"must be|at most"):
        channel.queue_declare(name, arguments=arguments)
    with pytest.raises(errors.QueueNotFound):
        count(channel, name)


def test_a_later_declaration_brings_its_arguments(connect: Connect, name: str, bodies: Bodies) -> None:
    """A publisher may have made the queue before its worker declares it as it should be."""
    publishing, declaring = connect(application_name="publishing").channel(), connect().channel()
    producer = Producer(publishing)
    producer.publish("a", routing_key=name, priority=9)
    Queue(name, max_priority=1)(declaring).declare()
    producer.publish("b", routing_key=name, priority=9)
    Queue(name)(declaring).declare()  # no arguments: it is as it is
    producer.publish("c", routing_key=name, priority=9)
    assert bodies(publishing, name) == ["a", "b", "c"]
    producer.publish("d", routing_key=name, priority=9)
    assert publishing.basic_get(name).delivery_info["priority"] == 1
