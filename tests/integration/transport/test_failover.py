"""Failover lists of URLs, and switching a connection to another URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from kombu import Connection, Producer

from pgbroker.errors import OptionError
from pgbroker.postgres import pool
from pgbroker.transport.process import all_processes

#: Nobody listens there; also with what kombu's own parser cannot read: several hosts, options.
DEAD_URLS = (
    "pgbroker://nobody@/nowhere?host=/nonexistent",
    "pgbroker://nobody:secret@localhost:1,localhost:2/nowhere?connect_timeout=2&schema=s",
    "pgbroker+postgresql://localhost:1/nowhere",
)
Bodies = Callable[[Any, str], list[Any]]


@pytest.fixture(autouse=True)
def shared_state_is_dropped() -> Iterator[None]:
    yield
    for process in all_processes():
        process.keeper.stop()
    pool.close_all()


@pytest.fixture
def live_url(module_database: Any) -> str:
    """The test's database, with an option of ours."""
    url = str(module_database.url)
    return f"{url}{'&' if '?' in url else '?'}schema={quote('fail over')}"


@pytest.mark.parametrize("dead", DEAD_URLS)
def test_connects_to_the_first_url_that_answers(dead: str, live_url: str, name: str, bodies: Bodies) -> None:
    for urls in (f"{dead};{live_url}", [dead, live_url]):
        with Connection(urls) as connection:
            producer = Producer(connection)
            producer.publish(name, routing_key=name, retry=True, retry_policy={"max_retries": 3, "interval_start": 0})
            assert connection.transport.options.schema == "fail over"
            assert bodies(connection.default_channel, name) == [name]
            assert bodies(connection.clone().default_channel, name) == []


def test_goes_round_through_all_urls(live_url: str) -> None:
    with Connection([*DEAD_URLS, live_url]) as connection:
        failed: list[str] = []
        connection.ensure_connection(
            errback=lambda exc, interval: failed.append(connection.as_uri()), max_retries=5, interval_start=0
        )
        assert connection.connected
        assert failed == [
            DEAD_URLS[0],
            DEAD_URLS[1].replace("secret", "**"),
            DEAD_URLS[2].replace("pgbroker+postgresql", "pgbroker"),
        ]


def test_a_connection_can_be_switched(live_url: str, name: str, bodies: Bodies) -> None:
    connection = Connection(DEAD_URLS[1])
    connection.switch(live_url)  # before it was ever used
    assert bodies_of_new_message(connection, name, bodies) == [name]
    for url in (DEAD_URLS[0], live_url, DEAD_URLS[1]):
        connection.switch(url)
        assert not connection.connected
    with pytest.raises(connection.connection_errors):
        connection.connect()
    assert "secret" not in repr(connection)
    with pytest.raises(OptionError):
        connection.switch("pgbroker://a b@@c/")
    connection.switch("memory://")
    assert connection.transport.driver_type == "memory"
    connection.switch(live_url)
    assert connection.transport.driver_type == "pgbroker"
    assert bodies_of_new_message(connection, name, bodies) == [name]
    connection.release()


def bodies_of_new_message(connection: Connection, name: str, bodies: Bodies) -> list[Any]:
    channel = connection.channel()
    Producer(channel).publish(name, routing_key=name)
    return bodies(channel, name)


@pytest.mark.parametrize("as_text", [True, False])
def test_celery_takes_a_failover_list(live_url: str, name: str, as_text: bool) -> None:
    urls = [DEAD_URLS[0], live_url]
    app = Celery(broker=";".join(urls) if as_text else urls, set_as_current=False)
    app.conf.broker_connection_timeout = 5
    try:
        sent = app.send_task("some.task", queue=name, retry_policy={"max_retries": 3, "interval_start": 0})
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=3, interval_start=0)
            message = connection.default_channel.basic_get(name, no_ack=True)
        assert message.headers["id"] == sent.id
    finally:
        app.close()
