"""Queues, exchanges and bindings, as kombu declares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from pgbroker import errors

ODD_NAME = "q'\"\\%s ;-- 🐘" + "ü" * 95

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Quiet = Callable[[Connection], None]


def test_publishes_to_an_unknown_queue_by_making_it(channel: Any, name: str) -> None:
    Producer(channel).publish({"a": 1}, routing_key=name)
    assert channel.queue_declare(name, passive=True).message_count == 1
    message = channel.basic_get(name)
    assert message.payload == {"a": 1}
    message.ack()
    assert channel.basic_get(name) is None


def test_a_passive_declare_of_a_missing_queue_is_a_channel_error(connection: Connection, name: str) -> None:
    with pytest.raises(connection.channel_errors, match=name):
        connection.channel().queue_declare(name, passive=True)
    with pytest.raises(connection.channel_errors, match=name):
        Consumer(connection, [Queue(name, no_declare=True)], accept=["json"]).consume()


def test_purges_and_deletes(channel: Any, name: str) -> None:
    producer = Producer(channel)
    for number in range(3):
        producer.publish(number, routing_key=name)
    assert channel.queue_purge(name) == 3
    assert channel.queue_purge(name) == 0
    producer.publish(1, routing_key=name)
    with pytest.raises(errors.PreconditionFailed, match="if_empty"):
        channel.queue_delete(name, if_empty=True)
    assert channel.queue_declare(name, passive=True).message_count == 1
    assert channel.queue_delete(name) == 1
    with pytest.raises(errors.QueueNotFound):
        channel.queue_declare(name, passive=True)


def test_a_queue_that_others_consume_is_not_deleted_if_unused(connect: Connect, name: str) -> None:
    consuming, deleting = connect(), connect(application_name="another")
    with Consumer(consuming, [Queue(name)], accept=["json"]):
        assert deleting.channel().queue_declare(name, passive=True).consumer_count == 1
        with pytest.raises(deleting.channel_errors, match="if_unused"):
            deleting.channel().queue_delete(name, if_unused=True)
        assert deleting.channel().queue_declare(name, passive=True)
    assert deleting.channel().queue_declare(name, passive=True).consumer_count == 0
    deleting.channel().queue_delete(name, if_unused=True)
    with pytest.raises(errors.QueueNotFound):
        deleting.channel().queue_declare(name, passive=True)


def test_takes_long_and_odd_queue_names(connection: Connection, channel: Any, drain: Drain) -> None:
    assert 200 <= len(ODD_NAME.encode()) <= 255
    got: list[Any] = []
    Producer(channel).publish("first", routing_key=ODD_NAME)
    with Consumer(channel, [Queue(ODD_NAME)], on_message=lambda m: (got.append(m.payload), m.ack())):
        drain(connection, 1)
        # woken for a name longer than a channel name may be
        Producer(connection.channel()).publish("second", routing_key=ODD_NAME)
        drain(connection, 1, 2)
    assert got == ["first", "second"]
    with pytest.raises(ValueError, match="255 bytes"):
        channel.queue_declare("x" * 256)


def test_a_task_on_an_exchange_that_leads_nowhere_is_unroutable(channel: Any, name: str) -> None:
    exchange = Exchange(name, "direct")
    exchange(channel).declare()
    producer = Producer(channel, exchange=exchange, auto_declare=False)
    with pytest.raises(errors.Unroutable, match=name):
        producer.publish({}, routing_key="nowhere", headers={"task": "t", "id": "1"})
    with pytest.raises(errors.Unroutable, match="nowhere"):
        producer.publish({}, routing_key="nowhere", mandatory=True)
    producer.publish({}, routing_key="nowhere")  # other messages vanish, as AMQP has it


@pytest.mark.parametrize(
    ("binding", "key", "is_bound"),
    [
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#.c", "c", True),
        ("#", "", True),
        ("a.*", "a", False),
        ("a+.b", "aa.b", False),
        ("größe.*", "größe.x", True),
    ],
)
def test_routes_by_topic(channel: Any, name: str, binding: str, key: str, is_bound: bool) -> None:
    exchange = Exchange(name, "topic")
    Queue(name, exchange, routing_key=binding)(channel).declare()
    Producer(channel, exchange=exchange).publish({}, routing_key=key)
    assert (channel.basic_get(name, no_ack=True) is not None) is is_bound


def test_a_fanout_exchange_feeds_every_queue_once(
    connection: Connection, name: str, drain: Drain, assert_quiet: Quiet
) -> None:
    exchange = Exchange(name, "fanout")
    got: list[tuple[str, int]] = []
    queues = [Queue(f"{name}-{letter}", exchange) for letter in "ab"]
    queues.append(Queue(f"{name}-c", exchange, exclusive=True, auto_delete=True))

    def take(message: Any) -> None:
        got.append((message.delivery_info["queue"], message.payload))
        message.ack()

    with Consumer(connection, queues, on_message=take):
        producer = Producer(connection.channel(), exchange=exchange)
        for number in range(2):
            producer.publish(number)
        drain(connection, 6)
        assert_quiet(connection)
    assert sorted(got) == [(f"{name}-{letter}", number) for letter in "abc" for number in range(2)]


def test_unbinding_ends_it(channel: Any, name: str) -> None:
    exchange = Exchange(name, "direct")
    queue = Queue(name, exchange, routing_key="k")(channel)
    queue.declare()
    queue.unbind_from(exchange, routing_key="k")
    Producer(channel, exchange=exchange).publish({}, routing_key="k")
    assert channel.basic_get(name) is None


def test_lists_bindings(connection: Connection, name: str) -> None:
    queue = Queue(name, Exchange(f"{name}.x", type="topic"), routing_key="a.*")
    queue(connection.channel()).declare()
    found = connection.manager.get_bindings()
    assert {"source": f"{name}.x", "destination": name, "routing_key": "a.*", "arguments": {}} in found
