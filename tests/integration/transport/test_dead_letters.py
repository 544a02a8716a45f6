"""Dead letter exchanges as with RabbitMQ, of queues that hold jobs and of transient ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

Connect = Callable[..., Connection]
Drain = Callable[..., None]
Quiet = Callable[[Connection], None]
Bodies = Callable[[Any, str], list[Any]]
Count = Callable[[Any, str], int]

#: What makes a queue transient, and what leaves it a queue of jobs.
KINDS = [pytest.param({}, id="job"), pytest.param({"expires": 60.0}, id="transient")]


# -- dead letters -----------------------------------------------------------------------------------


@pytest.fixture
def letters(channel: Any, name: str) -> str:
    """A queue for dead letters, bound to an exchange of its name under the key ``dead``."""
    queue = f"{name}.dead"
    Queue(queue, Exchange(f"{name}.dlx", "direct"), routing_key="dead")(channel).declare()
    return queue


@pytest.fixture
def dead_letter_arguments(name: str, letters: str) -> dict[str, str]:
    return {"x-dead-letter-exchange": f"{name}.dlx", "x-dead-letter-routing-key": "dead"}


@pytest.mark.parametrize("traits", KINDS)
def test_a_rejected_message_goes_to_the_dead_letter_exchange(
    channel: Any, name: str, letters: str, dead_letter_arguments: dict[str, Any], rows: Any, traits: dict[str, Any]
) -> None:
    exchange = Exchange(f"{name}.x", "direct")
    queue = Queue(name, exchange, routing_key="k", queue_arguments=dead_letter_arguments, **traits)(channel)
    queue.declare()
    Producer(channel, exchange=exchange).publish({"n": 1}, routing_key="k", headers={"mine": "ü"}, expiration=60)
    queue.get().reject()
    letter = channel.basic_get(letters)
    assert letter.payload == {"n": 1}
    assert letter.headers["mine"] == "ü"
    (death,) = letter.headers["x-death"]
    assert isinstance(death.pop("time"), str)
    assert death.pop("detail", None) == (None if traits else "rejected by its consumer")
    assert death == {
        "queue": name,
        "reason": "rejected",
        "count": 1,
        "exchange": f"{name}.x",
        "routing-keys": ["k"],
        "original-expiration": "60000",
    }
    assert letter.headers["x-first-death-queue"] == name
    assert (letter.delivery_info["exchange"], letter.delivery_info["routing_key"]) == (f"{name}.dlx", "dead")
    assert "expiration" not in letter.properties
    # a job stays among the dead letters of its own queue as well, where an operator can requeue it
    assert rows("select status::text from pgbroker.jobs where queue = %s", name) == ([] if traits else [("DEAD",)])


@pytest.mark.parametrize("traits", KINDS)
def test_an_expired_message_goes_to_the_dead_letter_exchange(
    channel: Any,
    name: str,
    letters: str,
    dead_letter_arguments: Any,
    expire: Any,
    rows: Any,
    traits: dict[str, Any],
    count: Count,
) -> None:
    Queue(name, message_ttl=0.1, queue_arguments=dead_letter_arguments, **traits)(channel).declare()
    headers = {"task": "t", "id": name}
    Producer(channel).publish([1], routing_key=name, headers=headers, dedupe_key="the key")
    expire(name)
    letter = channel.basic_get(letters)
    assert letter.headers["x-death"][0]["reason"] == "expired"
    assert letter.headers["x-death"][0]["routing-keys"] == [name]
    assert count(channel, name) == 0
    ((task, key),) = rows("select task_name, dedupe_key from pgbroker.jobs where queue = %s", letters)
    assert (task, key) == ("t", None if traits else "the key")
    # the task goes on elsewhere, so nobody is told that it has ended
    assert rows("select outcome from pgbroker.outcome_outbox where task_id = %s", name) == []


def test_an_expired_job_whose_dead_letters_lead_nowhere_has_ended(
    channel: Any, name: str, expire: Any, rows: Any
) -> None:
    Queue(name, message_ttl=0.1, queue_arguments={"x-dead-letter-exchange": f"{name}.missing"})(channel).declare()
    Producer(channel).publish([1], routing_key=name, headers={"task": "t", "id": name})
    expire(name)
    assert rows("select outcome from pgbroker.outcome_outbox where task_id = %s", name) == [("EXPIRED",)]
    assert rows("select status::text, result_state from pgbroker.job_log where task_id = %s", name) == [
        ("CANCELLED", "REVOKED")
    ]


def test_an_idle_consumer_sends_expired_messages_on(connect: Connect, name: str, drain: Drain) -> None:
    """A delay queue: nobody consumes from it, what expires there goes to the queue that is worked on."""
    channel = connect(application_name="publisher").channel()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
    for delay, traits in (("job", {}), ("transient", {"expires": 60.0})):
        Queue(f"{name}.{delay}", message_ttl=0.5, queue_arguments=arguments, **traits)(channel).declare()
    working = connect(poll_interval=1.0)
    got: list[Any] = []
    with Consumer(working, [Queue(name)], on_message=lambda m: (got.append(m.payload), m.ack())):
        for delay in ("job", "transient"):
            Producer(channel).publish(delay, routing_key=f"{name}.{delay}")
        drain(working, 2, 15)
    assert sorted(got) == ["job", "transient"]


def test_what_does_not_fit_into_a_full_queue_is_a_dead_letter(
    channel: Any, name: str, letters: str, dead_letter_arguments: dict[str, Any], bodies: Bodies
) -> None:
    Queue(name, expires=60.0, max_length=1, queue_arguments=dead_letter_arguments)(channel).declare()
    for number in range(3):
        Producer(channel).publish(number, routing_key=name)
    assert bodies(channel, name) == [2]
    for number in range(2):
        letter = channel.basic_get(letters)
        assert (letter.payload, letter.headers["x-death"][0]["reason"]) == (number, "maxlen")


def test_rejections_and_delays_may_go_round_and_are_counted(channel: Any, name: str, expire: Any) -> None:
    """The usual way to try again later: reject into a queue whose messages expire back."""
    later = f"{name}.later"
    Queue(name, queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": later})(channel).declare()
    Queue(later, message_ttl=0.05, queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name})(
        channel
    ).declare()
    Producer(channel).publish("again", routing_key=name)
    for turn in range(3):
        message = channel.basic_get(name)
        deaths = {death["queue"]: death["count"] for death in message.headers.get("x-death", [])}
        assert deaths == ({name: turn, later: turn} if turn else {})
        message.reject()
        expire(later)
    assert [death["queue"] for death in channel.basic_get(name).headers["x-death"]] == [later, name]


def test_what_only_expires_does_not_go_round_for_ever(
    channel: Any, name: str, expire: Any, rows: Any, count: Count
) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
    Queue(name, message_ttl=0.05, queue_arguments=arguments)(channel).declare()
    Producer(channel).publish("round", routing_key=name)
    expire(name)
    assert rows("select count(*) from pgbroker.jobs where queue = %s", name) == [(0,)]


def test_headers_that_are_no_json_for_the_server_stop_nothing(
    channel: Any, name: str, letters: str, dead_letter_arguments: dict[str, Any], rows: Any, bodies: Bodies
) -> None:
    """PostgreSQL cannot take a NUL out of JSON; the job must be buried all the same."""
    Queue(name, queue_arguments=dead_letter_arguments)(channel).declare()
    Producer(channel).publish("odd", routing_key=name, headers={"with": "\x00"})
    channel.basic_get(name).reject()
    assert rows("select status::text from pgbroker.jobs where queue = %s", name) == [("DEAD",)]
    assert bodies(channel, letters) == []
