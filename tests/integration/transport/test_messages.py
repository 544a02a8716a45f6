"""What a message may hold, where it is stored, and what shows of the connection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Connection, Consumer, Producer, Queue
from kombu.exceptions import EncodeError

from pgbroker import errors

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Quiet = Callable[[Connection], None]


@pytest.mark.parametrize(
    "body",
    [b"\x00\xff binary", "text with \x00 and 🐘", {"nested": [1, None, "ü"]}, b"x" * 10_000_000],
    ids=["bytes", "text", "json", "10 MB"],
)
def test_keeps_any_body(channel: Any, name: str, body: Any) -> None:
    Producer(channel).publish(body, routing_key=name, serializer="raw" if isinstance(body, bytes) else None)
    message = channel.basic_get(name)
    got = message.payload
    assert (bytes(got) if isinstance(body, bytes) else got) == body
    message.ack()


def test_what_cannot_be_serialised_raises_before_anything_is_stored(channel: Any, name: str) -> None:
    with pytest.raises(EncodeError):
        Producer(channel).publish({"object": object()}, routing_key=name)
    with pytest.raises(ValueError, match="eta"):
        Producer(channel).publish({}, routing_key=name, headers={"task": "t", "id": "i", "eta": "next week"})
    with pytest.raises(errors.QueueNotFound):
        channel.queue_declare(name, passive=True)


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
@pytest.mark.parametrize(
    ("what", "headers", "properties"),
    [
        ("task id", lambda text: {"task": "t", "id": text}, lambda text: {}),
        ("task name", lambda text: {"task": text, "id": "i"}, lambda text: {}),
        ("dedupe key", lambda text: {"task": "t", "id": "i"}, lambda text: {"dedupe_key": text}),
    ],
)
def test_refuses_ids_that_postgres_cannot_hold(
    channel: Any, name: str, text: str, what: str, headers: Any, properties: Any
) -> None:
    """A worker would be given another id than the one by which the result is asked for."""
    with pytest.raises(ValueError, match=f"{what} 'a.*b' holds a NUL or a lone surrogate"):
        Producer(channel).publish({}, routing_key=name, headers=headers(text), **properties(text))
    with pytest.raises(errors.QueueNotFound):
        channel.queue_declare(name, passive=True)


def test_takes_any_id_of_what_is_no_task(channel: Any, name: str) -> None:
    Producer(channel).publish({"a": 1}, routing_key=name, headers={"id": "a\x00b"}, correlation_id="c\x00d")
    message = channel.basic_get(name, no_ack=True)
    assert (message.headers["id"], message.properties["correlation_id"]) == ("a\x00b", "c\x00d")


def test_two_schemas_live_side_by_side(connect: Connect, name: str) -> None:
    one, two = connect(schema="first app").channel(), connect(schema="second app").channel()
    Producer(one).publish("in one", routing_key=name)
    Producer(two).publish("in two", routing_key=name)
    assert [channel.basic_get(name, no_ack=True).payload for channel in (one, two)] == ["in one", "in two"]
    assert [channel.basic_get(name) for channel in (one, two)] == [None, None]


def test_goes_on_after_its_connections_were_cut(
    connect: Connect, name: str, module_database: Any, drain: Drain
) -> None:
    connection = connect()
    got: list[Any] = []

    def cut() -> None:
        with closing(module_database.connect()) as admin, admin.cursor() as cursor:
            cursor.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )

    publisher = connect(application_name="publisher")
    producer = Producer(publisher.channel())
    producer.publish(1, routing_key=name)
    cut()
    producer.publish(2, routing_key=name, retry=True, retry_policy={"max_retries": 3, "interval_start": 0})
    with Consumer(connection, [Queue(name)], on_message=lambda m: (got.append(m.payload), m.ack())):
        drain(connection, 2)
        cut()
        with pytest.raises(connection.connection_errors):
            drain(connection, 1)
    assert got == [1, 2]


def test_a_password_shows_nowhere(connect: Connect, module_database: Any) -> None:
    url = urlsplit(module_database.url)
    connection = connect(url._replace(netloc=f"someone:s3cr%2Ft@{url.netloc.rpartition('@')[2]}").geturl())
    info = dict(connection.info())
    assert info.pop("password") == "s3cr/t"  # where Celery expects it, and takes it out
    shown = [
        connection,
        connection.as_uri(),
        info,
        connection.transport,
        connection.clone(),
        connection.transport.options,
    ]
    assert not [thing for thing in shown if "s3cr" in repr(thing)]
    assert "s3cr%2Ft" in connection.as_uri(include_password=True)
