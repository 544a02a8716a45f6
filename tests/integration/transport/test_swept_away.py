"""A process that was not heard of for a while, and whose transient queues were swept away meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

Connect = Callable[..., Connection]
Drain = Callable[..., None]

SWEEP = "select pgbroker.sweep_transient()"
LET_PASS = "update pgbroker.transient_queues set lives_until = now() - interval '1 second' where name = %s"


def sweep(channel: Any, name: str) -> None:
    channel._query((LET_PASS, (name,)))
    assert channel._query((SWEEP, ())) == [(1,)]


def attend(channel: Any) -> None:
    """What the lease thread does every few seconds."""
    channel.process.keeper._attend()


@pytest.mark.parametrize("kind", ["topic", "fanout"])
def test_declares_and_binds_again(
    connection: Connection, connect: Connect, name: str, drain: Drain, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[Any] = []
    channel = connection.channel()
    exchange = Exchange(f"{name}.x", kind, durable=False, auto_delete=True)
    queue = Queue(name, exchange, routing_key="a.#", auto_delete=True, expires=60)
    producer = Producer(connect(application_name="another").channel(), auto_declare=False)

    def publish(body: str) -> None:
        producer.publish(body, exchange=f"{name}.x", routing_key="a.b")

    with Consumer(channel, [queue], on_message=lambda message: got.append(message.payload)):
        publish("first")
        drain(connection, 1)
        sweep(channel, name)
        publish("lost")
        attend(channel)
        assert f"declared again what had gone while this process was not heard of: {name}" in caplog.text
        caplog.clear()
        publish("second")
        drain(connection, 1)
        # a binding alone
        channel._query(("delete from pgbroker.bindings where queue = %s", (name,)))
        attend(channel)
        publish("third")
        drain(connection, 1)
        assert name in caplog.text
        caplog.clear()
        attend(channel)
        assert caplog.text == ""
    assert got == ["first", "second", "third"]
    # with its consumer it went for good
    attend(channel)
    assert channel._query(("select 1 from pgbroker.transient_queues where name = %s", (name,))) == []


def test_unbound_bindings_and_deleted_queues_stay_away(channel: Any, name: str) -> None:
    exchange = Exchange(f"{name}.x", "direct")
    queue = Queue(name, exchange, routing_key="k", exclusive=True)(channel)
    queue.declare()
    queue.bind_to(exchange, routing_key="another")
    queue.unbind_from(exchange, routing_key="another")
    sweep(channel, name)
    attend(channel)
    assert channel._query(("select routing_key from pgbroker.bindings where queue = %s", (name,))) == [("k",)]
    queue.delete()
    attend(channel)
    assert channel._query(("select 1 from pgbroker.transient_queues where name = %s", (name,))) == []


@pytest.fixture
def queue_of_the_past(channel: Any, name: str) -> str:
    """A queue whose time is over."""
    channel.queue_declare(name, exclusive=True)
    channel._query((LET_PASS, (name,)))
    return name


def test_the_sweep_leaves_a_queue_that_is_being_attended_to(
    channel: Any, queue_of_the_past: str, module_database: Any
) -> None:
    name = queue_of_the_past
    with closing(module_database.connect(autocommit=False)) as attending, attending.cursor() as cursor:
        cursor.execute("select * from pgbroker.attend('w', '{}', '{}', array[%s], 60)", [name])
        assert channel._query((SWEEP, ())) == [(0,)]
        attending.commit()
    assert channel._query((SWEEP, ())) == [(0,)]
    assert channel._query(("select 1 from pgbroker.transient_queues where name = %s", (name,))) == [(1,)]


@pytest.mark.parametrize(
    ("statement", "is_there"),
    [("select count(*) > 0 from pgbroker.attend('w', '{}', '{}', array[%s], 60)", False),
     ("select pgbroker.declare_queue(%s, p_transient => true, p_owner => 'w') = 'transient'", True)],
)  # fmt: skip
def test_who_meets_the_sweep_at_work_finds_no_queue(
    channel: Any, queue_of_the_past: str, module_database: Any, statement: str, is_there: bool
) -> None:
    """Attending says that it is gone, declaring makes it anew."""
    name, answers = queue_of_the_past, []
    with (
        closing(module_database.connect(autocommit=False)) as sweeping,
        closing(module_database.connect()) as other,
        sweeping.cursor() as sweeper,
        other.cursor() as cursor,
    ):
        sweeper.execute(SWEEP)
        assert sweeper.fetchall() == [(1,)]

        def meet() -> None:
            cursor.execute(statement, [name])
            answers.append(cursor.fetchone())

        thread = threading.Thread(target=meet)
        thread.start()
        waiting = "select count(*) from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
        while channel._query((waiting, (other.info.backend_pid,))) == [(0,)]:
            assert thread.is_alive()
        sweeping.commit()
        thread.join(5)
    assert answers == [(is_there,)]
    found = channel._query(("select 1 from pgbroker.transient_queues where name = %s", (name,)))
    assert bool(found) is is_there
