"""What a process knows that it holds, from the claim until the server has heard of the end."""

from __future__ import annotations

import pytest

from pgbroker import errors
from pgbroker.queue.ledger import Ledger, Tag
from pgbroker.queue.store import store_for


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(store_for("pgbroker"))
    for number in (1, 2):
        ledger.deliver(Tag(number, 10 * number), "consumer")
    return ledger


def test_an_end_that_the_server_has_not_heard_of_keeps_its_lease(ledger: Ledger) -> None:
    """Else it would be taken back, or be given back as unknown, before it is said."""
    ledger.bury(Tag(1, 10), "no good")
    ledger.end(Tag(2, 20), "SUCCESS")
    assert len(ledger) == 0
    assert sorted(ledger.claims()) == [10, 20]
    call, report = ledger.take_call(), ledger.take_report()
    assert call is not None
    assert sorted(ledger.claims()) == [10, 20]
    ledger.refused(call, errors.ConnectionLost("gone"))
    ledger.return_report(report)
    assert sorted(ledger.claims()) == [10, 20]
    again = ledger.take_call()
    assert again is call
    ledger.call_said(call)
    assert ledger.claims() == [20]
    ledger.said(ledger.take_report())
    assert ledger.claims() == []


def test_what_the_server_will_refuse_each_time_is_dropped(ledger: Ledger) -> None:
    ledger.bury(Tag(1, 10), "no good")
    call = ledger.take_call()
    assert call is not None
    ledger.refused(call, errors.DatabaseError("out of range"))
    assert ledger.take_call() is None
    assert ledger.claims() == [20]


def test_what_is_given_back_is_known_until_it_is_said(ledger: Ledger) -> None:
    ledger.release([Tag(1, 10)])
    call = ledger.take_call()
    assert sorted(ledger.claims()) == [10, 20]
    assert call is not None
    ledger.call_said(call)
    assert ledger.claims() == [20]


def test_a_process_that_ends_holds_nothing_any_more(ledger: Ledger) -> None:
    """Followed and started, followed and not started, and a plain consumer's, of which nobody knows."""
    ledger.deliver(Tag(3, 30), "consumer")
    for tag in (Tag(1, 10), Tag(2, 20), Tag(3, 30)):
        assert ledger.hand_over(tag)
    for tag in (Tag(1, 10), Tag(2, 20)):
        assert ledger.follow(tag)
    ledger.start(Tag(1, 10), early=True)
    ledger.stop_all()
    assert len(ledger) == 0
    said = []
    while (call := ledger.take_call()) is not None:
        said.append((call[0].split("(")[0].split(".")[1], call[1]))
    assert said == [("stop_job", (1, 10, True)), ("stop_job", (3, 30, False)), ("release", ([2], [20]))]
