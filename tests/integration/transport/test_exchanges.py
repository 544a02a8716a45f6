"""Exchanges and bindings as with RabbitMQ: types, errors, who sees them, what becomes of what leads nowhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.common import Broadcast

from pgbroker import errors

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Quiet = Callable[[Connection], None]
Bodies = Callable[[Any, str], list[Any]]
Count = Callable[[Any, str], int]


@pytest.mark.parametrize(
    ("asked", "headers", "is_met"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1}, {"a": "1"}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "y"}, False),
        ({"x-match": "any", "a": 1}, {}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"b": 1}, False),
        ({"x-kind": "never looked at"}, {}, True),
        ({"x-match": "all-with-x", "x-kind": "looked at"}, {"x-kind": "other"}, False),
        ({"x-match": "any-with-x", "x-kind": "looked at"}, {"x-kind": "looked at"}, True),
        ({}, {}, True),
    ],
)
def test_routes_by_headers(
    channel: Any, name: str, asked: dict[str, Any], headers: dict[str, Any], is_met: bool, bodies: Bodies
) -> None:
    exchange = Exchange(name, "headers")
    Queue(name, exchange, binding_arguments=asked)(channel).declare()
    Producer(channel, exchange=exchange).publish("here", headers=headers)
    assert (bodies(channel, name) == ["here"]) is is_met


def test_one_queue_has_several_bindings_to_a_headers_exchange(channel: Any, name: str, bodies: Bodies) -> None:
    exchange = Exchange(name, "headers")
    queue = Queue(name, exchange, binding_arguments={"a": 1})(channel)
    queue.declare()
    queue.bind_to(exchange, arguments={"b": 2})
    producer = Producer(channel, exchange=exchange)
    producer.publish("both", headers={"a": 1, "b": 2})
    producer.publish("second", headers={"b": 2})
    assert bodies(channel, name) == ["both", "second"]
    queue.unbind_from(exchange, arguments={"b": 2})
    producer.publish("first", headers={"a": 1})
    producer.publish("none", headers={"b": 2})
    assert bodies(channel, name) == ["first"]


def test_a_queue_with_two_matching_bindings_gets_a_message_once(channel: Any, name: str, bodies: Bodies) -> None:
    exchange = Exchange(name, "topic")
    queue = Queue(name, exchange, routing_key="a.*")(channel)
    queue.declare()
    queue.bind_to(exchange, routing_key="#")
    Producer(channel, exchange=exchange).publish("once", routing_key="a.b")
    assert bodies(channel, name) == ["once"]


def test_the_exchanges_that_every_broker_has_are_there(channel: Any, name: str, bodies: Bodies) -> None:
    for type in ("direct", "topic", "fanout", "headers"):
        exchange = Exchange(f"amq.{type}", type)
        Queue(name, exchange, routing_key=name, binding_arguments={"for": name} if type == "headers" else None)(
            channel
        ).declare()
        Producer(channel, exchange=exchange).publish(type, routing_key=name, headers={"for": name})
        assert bodies(channel, name) == [type]
        channel.queue_delete(name)


def test_another_process_sees_a_binding_at_once(
    connect: Connect, name: str, module_database: Any, bodies: Bodies
) -> None:
    """A publisher that has been told that an exchange leads nowhere finds the queue that somebody binds later."""
    publishing = connect(application_name="publishing")
    exchange = Exchange(name, "topic")
    producer = Producer(publishing.channel(), exchange=exchange)
    producer.publish("before", routing_key="k.1")
    code = f"""if True:
        from kombu import Connection, Exchange, Queue
        with Connection({module_database.url!r}) as connection:
            Queue({name!r}, Exchange({name!r}, "topic"), routing_key="k.*")(connection.channel()).declare()
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    producer.publish("after", routing_key="k.2")
    assert bodies(publishing.channel(), name) == ["after"]


def test_what_leads_nowhere_under_one_key_may_lead_on_under_another(
    connection: Connection, name: str, drain: Drain
) -> None:
    """A process that consumes remembers exchanges to which nothing is bound; this one is none of them."""
    got: list[Any] = []
    exchange = Exchange(name, "topic")
    queue = Queue(name, exchange, routing_key="good.*", auto_delete=True)
    with Consumer(connection, [queue], on_message=lambda m: (got.append(m.payload), m.ack())):
        producer = Producer(connection.channel(), exchange=exchange)
        producer.publish("lost", routing_key="bad.1")
        producer.publish("found", routing_key="good.1")
        drain(connection, 1)
    assert got == ["found"]


def test_what_does_not_exist_is_a_channel_error(connection: Connection, name: str) -> None:
    channel = connection.channel()
    with pytest.raises(connection.channel_errors, match=f"no exchange named '{name}'"):
        channel.exchange_declare(name, passive=True)
    channel.queue_declare(name)
    with pytest.raises(errors.ExchangeNotFound):
        channel.queue_bind(name, f"{name}.missing", "k")
    channel.exchange_declare(name, "direct")
    channel.exchange_declare(name, passive=True)
    with pytest.raises(errors.QueueNotFound):
        channel.queue_bind(f"{name}.missing", name, "k")
    assert not [binding for binding in channel.get_bindings() if binding["source"] == name]


def test_what_differs_from_what_is_there_is_a_channel_error(connection: Connection, name: str) -> None:
    channel = connection.channel()
    channel.exchange_declare(name, "direct")
    channel.exchange_declare(name, "direct")
    with pytest.raises(connection.channel_errors, match="direct exchange, not a topic one"):
        channel.exchange_declare(name, "topic")
    with pytest.raises(ValueError, match="x-delayed-message"):
        channel.exchange_declare(f"{name}.x", "x-delayed-message")
    channel.queue_declare(name, auto_delete=True)
    with pytest.raises(errors.PreconditionFailed, match="transient"):
        channel.queue_declare(name, durable=True)


def test_an_exchange_in_use_is_not_deleted_if_unused(channel: Any, name: str) -> None:
    queue = Queue(name, Exchange(name, "direct"), routing_key="k")(channel)
    queue.declare()
    with pytest.raises(errors.PreconditionFailed, match="if_unused"):
        channel.exchange_delete(name, if_unused=True)
    queue.unbind_from(queue.exchange, routing_key="k")
    channel.exchange_delete(name, if_unused=True)
    channel.exchange_delete(name, if_unused=True)  # nothing to delete is no error
    with pytest.raises(errors.ExchangeNotFound):
        channel.exchange_declare(name, passive=True)


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: Any, name: str) -> None:
    exchange = Exchange(name, "direct", auto_delete=True)
    for queue in (f"{name}-1", f"{name}-2"):
        Queue(queue, exchange, routing_key="k")(channel).declare()
    channel.queue_delete(f"{name}-1")
    channel.exchange_declare(name, passive=True)
    channel.queue_delete(f"{name}-2")
    with pytest.raises(errors.ExchangeNotFound):
        channel.exchange_declare(name, passive=True)


def test_bindings_between_exchanges_are_refused(channel: Any, name: str) -> None:
    with pytest.raises(NotImplementedError, match="bind queues"):
        Exchange(name, "direct")(channel).bind_to(f"{name}.other", routing_key="k")


def test_a_mandatory_message_that_leads_nowhere_is_returned(channel: Any, name: str) -> None:
    returned: list[tuple[Any, ...]] = []
    exchange = Exchange(name, "direct")
    producer = Producer(channel, exchange=exchange, on_return=lambda *what: returned.append(what))
    producer.publish({"n": 1}, routing_key="nowhere", mandatory=True)
    producer.publish({"n": 2}, routing_key="nowhere")
    ((error, exchange_name, routing_key, message),) = returned
    assert isinstance(error, errors.Unroutable)
    assert (exchange_name, routing_key, message.body) == (name, "nowhere", b'{"n": 1}')
    with pytest.raises(errors.Unroutable):  # a task does not get lost because somebody looks at other messages
        producer.publish({}, routing_key="nowhere", headers={"task": "t", "id": "1"})


def test_a_broadcast_reaches_every_consumer(connect: Connect, name: str, drain: Drain) -> None:
    ends = [connect(application_name=f"end {number}") for number in range(2)]
    got: dict[int, list[Any]] = {0: [], 1: []}
    consumers = [
        Consumer(end, [Broadcast(name)], on_message=lambda m, at=at: (got[at].append(m.payload), m.ack()))
        for at, end in enumerate(ends)
    ]
    with consumers[0], consumers[1]:
        Producer(ends[0].channel(), exchange=Exchange(name, "fanout")).publish("all")
        for end in ends:
            drain(end, 1)
    assert got == {0: ["all"], 1: ["all"]}
