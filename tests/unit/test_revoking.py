"""What the broker understands of remote control messages that revoke."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pgbroker.queue.ledger import Ledger, Tag
from pgbroker.queue.store import store_for
from pgbroker.transport.envelope import Envelope
from pgbroker.transport.revoking import Revocation, read_revocation, stamp_values


def read(
    method: str, arguments: Any, *, exchange: str = "celery.pidbox", content_type: str = "application/json", **more: Any
) -> Revocation | None:
    body = json.dumps({"method": method, "arguments": arguments, "destination": None, "pattern": None, **more})
    return read_revocation(exchange, Envelope(body, None, content_type, "utf-8", {}, {}))


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("revoke", {"task_id": "a"}, Revocation(["a"], {})),
        ("revoke", {"task_id": ["a", "b"], "terminate": True}, Revocation(["a", "b"], {})),
        ("terminate", {"signal": "KILL", "task_id": ["a"]}, Revocation(["a"], {})),
        ("revoke", {"task_id": []}, None),
        ("revoke", {"task_id": ["a", "b\x00", "\ud800"]}, Revocation(["a"], {})),
        ("revoke", {"task_id": "b\x00"}, None),
        ("revoke", {}, None),
        ("revoke", None, None),
        ("rate_limit", {"task_name": "revoke", "rate_limit": "1/s"}, None),
        ("revoke_by_stamped_headers", {"headers": {"h": "v"}}, Revocation([], {"h": ["v"]})),
        ("revoke_by_stamped_headers", {"headers": {"h": ["v", 1]}}, Revocation([], {"h": ["v", 1]})),
        ("revoke_by_stamped_headers", {"headers": ["h=v=w"]}, Revocation([], {"h": ["v=w"]})),
        ("revoke_by_stamped_headers", {"headers": ["h"]}, None),
    ],
)
def test_reads_a_revoke(method: str, arguments: Any, expected: Revocation | None) -> None:
    assert read(method, arguments) == expected


def test_leaves_to_the_workers_what_is_addressed_to_some_of_them() -> None:
    assert read("revoke", {"task_id": "a"}, destination=["w1@here"]) is None
    assert read("revoke", {"task_id": "a"}, pattern="w*", matcher="glob") is None


def test_reads_nothing_but_json_on_its_way_to_workers() -> None:
    assert read("revoke", {"task_id": "a"}, exchange="our.pidbox") is not None
    assert read("revoke", {"task_id": "a"}, exchange="reply.celery") is None
    assert read("revoke", {"task_id": "a"}, content_type="application/x-python-serialize") is None
    assert read_revocation("celery.pidbox", Envelope("revoke {", None, "application/json", "utf-8", {}, {})) is None


def test_leaves_out_stamps_that_nothing_stored_can_bear() -> None:
    stamps: dict[str, list[Any]] = {"h": ["v", 1, "a\x00b", "a\ud800b"], "i\x00": ["v"], "j": ["\U0001f600", None]}
    assert stamp_values(stamps) == (["h", "h", "j", "j"], ['"v"', "1", '"\U0001f600"', "null"])


def test_a_transient_message_with_the_number_of_a_claim_is_no_job() -> None:
    ledger = Ledger(store_for("pgbroker"))
    job, mail = Tag(7, 3), Tag(0, 3)
    ledger.deliver(job, "tag")
    ledger.ack(mail)
    ledger.bury(mail, "rejected")
    ledger.end(mail, "SUCCESS")
    assert ledger.claims() == [3]
    assert ledger.news_age is None
    ledger.ack(job)
    assert len(ledger) == 0
