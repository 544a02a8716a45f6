"""``Producer.batch()``: many publishes in one transaction, all of them or none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

import pgbroker
from pgbroker import errors
from pgbroker.queue import bulk

if not hasattr(Producer, "batch"):
    pytest.skip("this version of kombu has no Producer.batch()", allow_module_level=True)

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Bodies = Callable[[Any, str], list[Any]]
Count = Callable[[Any, str], int]
Rows = Callable[..., list[tuple[Any, ...]]]


def publish_batch(
    producer: Producer, *messages: Any, each: Any = None, raising: type[Exception] | None = None, max_size: int = 1000
) -> None:
    """Publish messages, with options that ``each`` gives, in one batch whose block ends well or with an error."""
    with producer.batch(max_size=max_size):
        for message in messages:
            producer.publish(message, **(each(message) if each is not None else {}))
        if raising is not None:
            raise raising


def test_what_is_published_in_the_block_is_stored_at_its_end(
    channel: Any, name: str, bodies: Bodies, count: Count
) -> None:
    producer = Producer(channel, routing_key=name)
    assert producer.supports_batch_publish
    channel.queue_declare(name)
    with producer.batch():
        for number in range(3):
            producer.publish(number)
        assert count(channel, name) == 0
    assert bodies(channel, name) == [0, 1, 2]


def test_an_error_in_the_block_leaves_nothing(channel: Any, name: str, bodies: Bodies) -> None:
    producer = Producer(channel, routing_key=name)
    with pytest.raises(ZeroDivisionError):
        publish_batch(producer, "never", raising=ZeroDivisionError)
    producer.publish("after")
    assert bodies(channel, name) == ["after"]


def test_more_than_kombu_would_send_at_once_is_still_all_or_nothing(
    channel: Any, name: str, bodies: Bodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK_MESSAGES", 4)
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 10)
    producer = Producer(channel, routing_key=name)
    with pytest.raises(ZeroDivisionError):
        publish_batch(producer, *range(25), raising=ZeroDivisionError, max_size=2)
    publish_batch(producer, *range(25), max_size=2)
    assert bodies(channel, name) == list(range(25))


def test_a_message_that_the_server_refuses_takes_the_others_with_it(
    channel: Any, name: str, bodies: Bodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK_MESSAGES", 2)
    producer = Producer(channel, routing_key=name)
    expires = {"task": "t", "id": "i", "expires": "0001-01-01T00:00:00+23:59"}  # a year that the server does not know
    with pytest.raises(errors.DatabaseError, match="out of range"):
        publish_batch(producer, *range(5), each=lambda number: {"headers": expires if number == 4 else {}})
    producer.publish("the session is fit for use again")
    assert bodies(channel, name) == ["the session is fit for use again"]


def test_a_task_that_leads_nowhere_takes_the_others_with_it(channel: Any, name: str, bodies: Bodies) -> None:
    exchange = Exchange(name, "direct")
    Queue(name, exchange, routing_key="k")(channel).declare()
    producer = Producer(channel, exchange=exchange)
    task = {"task": "t", "id": "1"}
    with pytest.raises(errors.Unroutable, match="nowhere"):
        publish_batch(producer, "k", "nowhere", each=lambda key: {"routing_key": key, "headers": task})
    assert bodies(channel, name) == []
    publish_batch(producer, "k", "nowhere", each=lambda key: {"routing_key": key})  # vanishes, here as elsewhere
    assert bodies(channel, name) == ["k"]


def test_a_batch_goes_through_exchanges_and_into_transient_queues(channel: Any, name: str, bodies: Bodies) -> None:
    exchange = Exchange(name, "topic")
    Queue(f"{name}-job", exchange, routing_key="a.*")(channel).declare()
    Queue(f"{name}-mail", exchange, routing_key="#", expires=60.0)(channel).declare()
    producer = Producer(channel, exchange=exchange)
    with producer.batch():
        for key in ("a.1", "b.1", "a.2"):
            producer.publish(key, routing_key=key)
    assert bodies(channel, f"{name}-job") == ["a.1", "a.2"]
    assert bodies(channel, f"{name}-mail") == ["a.1", "b.1", "a.2"]


def test_flush_stores_what_has_gathered(channel: Any, name: str, bodies: Bodies) -> None:
    producer = Producer(channel, routing_key=name)
    with producer.batch() as batch:
        producer.publish("first")
        batch.flush()
        assert bodies(channel, name) == ["first"]
        producer.publish("second")
    assert bodies(channel, name) == ["second"]


def test_an_inner_batch_is_a_part_of_the_outer_one(channel: Any, name: str, bodies: Bodies, count: Count) -> None:
    producer = Producer(channel, routing_key=name)
    channel.queue_declare(name)
    with producer.batch():
        with producer.batch():
            producer.publish(1)
        assert count(channel, name) == 0
        producer.publish(2)
    assert bodies(channel, name) == [1, 2]


def test_a_batch_holds_no_more_than_its_limit(connect: Connect, name: str) -> None:
    channel = connect(batch_max=3).channel()
    producer = Producer(channel, routing_key=name)
    with pytest.raises(errors.BatchTooLarge, match="batch_max = 3"):
        publish_batch(producer, *range(4))
    with pytest.raises(errors.QueueNotFound):
        channel.queue_declare(name, passive=True)


def test_duplicates_in_a_batch_are_not_stored(channel: Any, name: str, rows: Rows, bodies: Bodies) -> None:
    producer = Producer(channel, routing_key=name)
    producer.publish("first", dedupe_key="a")
    with producer.batch():
        for body, key in (("x", "c"), ("twin", "a"), ("y", "b"), ("twin", "c"), ("z", None)):
            producer.publish(body, dedupe_key=key)
    assert bodies(channel, name) == ["first", "x", "y", "z"]


def test_two_batches_with_the_same_keys_do_not_lock_each_other_out(connect: Connect, name: str, rows: Rows) -> None:
    channels = [connect(application_name=f"end {number}", dedupe_wait_seconds=20).channel() for number in range(2)]
    keys = [str(number) for number in range(200)]
    failed: list[BaseException] = []

    def publish(channel: Any, order: list[str]) -> None:
        producer = Producer(channel, routing_key=name)
        try:
            for _ in range(5):
                with producer.batch():
                    for key in order:
                        producer.publish(key, dedupe_key=key)
        except BaseException as exc:
            failed.append(exc)

    threads = [
        threading.Thread(target=publish, args=(channel, order))
        for channel, order in zip(channels, (keys, keys[::-1]), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert rows("select count(*), count(distinct dedupe_key) from pgbroker.jobs where queue = %s", name) == [(200, 200)]


def test_an_open_transaction_that_holds_a_key_is_waited_for_so_long(
    connect: Connect, name: str, module_database: Any, rows: Rows
) -> None:
    channel = connect(dedupe_wait_seconds=0.2).channel()
    channel.queue_declare(name)
    with closing(module_database.connect(autocommit=False)) as other, other.cursor() as cursor:
        cursor.execute("select pgbroker.enqueue('t', queue => %s, dedupe_key => 'held')", (name,))
        producer = Producer(channel, routing_key=name)
        with pytest.raises(errors.StatementTimeout):
            publish_batch(producer, "waits", each=lambda _: {"dedupe_key": "held"})
        other.rollback()
    publish_batch(producer, "goes in", each=lambda _: {"dedupe_key": "held"})
    assert rows("select count(*) from pgbroker.jobs where queue = %s", name) == [(1,)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_batch_in_a_transaction_of_the_application_is_a_part_of_it(
    channel: Any, name: str, module_database: Any, count: Count, is_committed: bool
) -> None:
    channel.queue_declare(name)
    producer = Producer(channel, routing_key=name)
    with closing(module_database.connect(autocommit=False)) as connection:
        with pgbroker.transaction(connection), producer.batch():
            producer.publish(1)
            producer.publish(2)
        assert count(channel, name) == 0
        connection.commit() if is_committed else connection.rollback()
    assert count(channel, name) == (2 if is_committed else 0)


def test_a_batch_wakes_who_waits_for_it(connect: Connect, name: str, drain: Drain) -> None:
    consuming = connect(poll_interval=60)
    got: list[Any] = []
    with Consumer(consuming, [Queue(name)], on_message=lambda m: (got.append(m.payload), m.ack())):
        with pytest.raises(TimeoutError):
            consuming.drain_events(timeout=1.2)  # past the quick looks

        def publish() -> None:
            with connect(application_name="publisher") as other:
                producer = Producer(other.channel(), routing_key=name)
                with producer.batch():
                    for number in range(5):
                        producer.publish(number)

        thread = threading.Timer(0.3, publish)
        thread.start()
        drain(consuming, 5, 5)
        thread.join()
    assert got == [0, 1, 2, 3, 4]
