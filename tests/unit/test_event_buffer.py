"""Events on their way: in order, not too many at once, and none that nobody will take."""

from __future__ import annotations

import pytest

from pgbroker import errors
from pgbroker.queue.store import Message
from pgbroker.transport import events
from pgbroker.transport.events import EventBuffer


def message(number: int, size: int = 1) -> Message:
    return Message(queue="task.multi", exchange="celeryev", routing_key=str(number), body=b"x" * size)


def keys(messages: list[Message]) -> list[str | None]:
    return [one.routing_key for one in messages]


@pytest.fixture
def buffer() -> EventBuffer:
    buffer = EventBuffer()
    buffer.exchange, buffer.is_heard = "celeryev", True
    return buffer


def test_takes_events_only_while_somebody_drives_it_and_somebody_listens(buffer: EventBuffer) -> None:
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    assert not buffer.takes("celeryev")
    buffer.drive(wake)
    assert buffer.takes("celeryev")
    assert not buffer.takes("other")
    buffer.add(message(1))
    assert woken == [1]
    buffer.sent(is_heard=False)
    assert not buffer.takes("celeryev")
    buffer.sent(is_heard=True)
    buffer.drive_no_more(wake)
    buffer.drive_no_more(wake)
    assert not buffer.takes("celeryev")


def test_one_statement_takes_a_bounded_number_and_size(buffer: EventBuffer) -> None:
    for number in range(events.MOST_AT_ONCE + 5):
        buffer.add(message(number))
    assert len(buffer.take()) == events.MOST_AT_ONCE
    assert len(buffer.take()) == 5
    for number in range(3):
        buffer.add(message(number, events.MOST_BYTES_AT_ONCE // 2))
    assert keys(buffer.take()) == ["0", "1"]
    assert keys(buffer.take()) == ["2"]
    assert buffer.take() == []


def test_what_was_not_sent_waits_again_before_the_others(buffer: EventBuffer) -> None:
    buffer.add(message(1))
    buffer.add(message(2))
    taken = buffer.take()
    buffer.add(message(3))
    buffer.refused(taken, errors.ConnectionLost("gone"))
    assert keys(buffer.take()) == ["1", "2", "3"]
    buffer.refused([message(4)], errors.StatementTimeout("slow"))
    assert keys(buffer.take()) == ["4"]


def test_what_the_server_refuses_is_not_sent_for_ever(buffer: EventBuffer) -> None:
    buffer.refused([message(1)], errors.DatabaseError("no"))
    assert buffer.take() == []


def test_the_oldest_are_dropped_when_nobody_takes_them(buffer: EventBuffer) -> None:
    for number in range(events.MOST_WAITING + 1):
        buffer.add(message(number))
    assert len(buffer) == events.MOST_WAITING
    first = buffer.take()
    assert first[0].routing_key == "1"
    buffer.add(message(-1))
    buffer.refused(first, errors.ConnectionLost("gone"))
    assert len(buffer) == events.MOST_WAITING
    assert buffer.take()[0].routing_key == "2"
