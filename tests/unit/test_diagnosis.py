"""Why a job does not run, said in sentences: from rows as the database gives them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from pgbroker.monitor.diagnosis import Surroundings, explain, first_line

NOW = dt.datetime(2026, 3, 1, 3, 0, tzinfo=dt.UTC)
SERVED: dict[str, Any] = {"consumers": 2, "running": 8}


def ago(**duration: float) -> dt.datetime:
    return NOW - dt.timedelta(**duration)


def why(around: dict[str, Any], **columns: Any) -> list[str]:
    job = {
        "job_id": 17,
        "status": "PENDING",
        "queue": "mail",
        "attempts": 0,
        "losses": 0,
        "max_attempts": 5,
        "requeues": 0,
        "run_after": ago(minutes=1),
        "expires_at": None,
        "claimed_at": None,
        "started_at": None,
        "last_error": None,
        **columns,
    }
    return explain(job, Surroundings(now=NOW, **around))


def test_ready_jobs_tell_their_place() -> None:
    busy = "(2 consumers, 8 held by workers)"
    assert why(SERVED) == [f"ready and first in line: claimed as soon as a worker has room {busy}"]
    behind = {**SERVED, "ahead": 120, "oldest_ready_at": ago(seconds=3)}
    assert why(behind) == [f"ready, behind 120 others, the oldest ready for 3 s {busy}"]
    assert why({**behind, "ahead": 100_001})[0].startswith("ready, behind more than 100000 others")
    assert why({**SERVED, "ahead": 1})[0] == f"ready, behind 1 other {busy}"


def test_what_stands_in_the_way_comes_first() -> None:
    assert why({"served_queues": ("a", "b")}) == [
        "no consumer on queue 'mail'; workers consume from: a, b",
        "ready and first in line",
    ]
    assert why({})[0] == "no consumer on queue 'mail'; no worker is up at all"
    assert why({"running": 1})[0].startswith("no Celery worker consumes from queue 'mail' now, though 1 of its jobs")
    paused = why({**SERVED, "paused_at": ago(hours=2)}, queue="it's mail")
    command = """celery -A APP pgbroker resume 'it'"'"'s mail'"""
    assert paused == [
        f'queue "it\'s mail" has been paused for 2 h; resume it with: {command}',
        "ready and first in line",
    ]


def test_jobs_in_the_future_tell_when_they_are_due() -> None:
    due = NOW + dt.timedelta(minutes=12)
    when = "in 12 min, at 2026-03-01 03:12:00Z"
    assert why(SERVED, run_after=due) == [f"waits for its ETA {when}"]
    assert why(SERVED, run_after=due, losses=2) == [
        f"waits for its next attempt (lost or failed 2 of 5 times), due {when}"
    ]
    assert why(SERVED, run_after=due, requeues=1) == [f"put back, waits to be due {when}"]
    assert why(SERVED, run_after=due, expires_at=NOW + dt.timedelta(hours=1))[1] == (
        "expires in 1 h, at 2026-03-01 04:00:00Z, if nobody claims it before"
    )


def test_an_expired_job_waits_for_nothing_else() -> None:
    assert why({"paused_at": ago(hours=1)}, expires_at=ago(minutes=3)) == [
        "expired 3 min ago and is never claimed; ended as CANCELLED by the next: celery -A APP pgbroker prune"
    ]
    assert why(SERVED, expires_at=NOW)[0].startswith("expired 0 s ago")


@pytest.mark.parametrize(
    ("ack_mode", "sentences"),
    [
        ("REPORTED", ["claimed 2 min ago, not started: waits in the worker for a free process"]),
        ("UNKNOWN", ["claimed 2 min ago, attempt 1", "acknowledged late: if its worker is lost it is run again"]),
        ("LATE", ["started 1 min ago, attempt 1", "acknowledged late: if its worker is lost it is run again"]),
        (
            "EARLY",
            [
                "started 1 min ago, attempt 1",
                "acknowledged early: if its worker is lost it is not run again and goes to the dead letters",
            ],
        ),
    ],
)
def test_running_jobs_tell_who_holds_them(ack_mode: str, sentences: list[str]) -> None:
    columns = {
        "status": "RUNNING",
        "worker": "w",
        "attempts": 1,
        "ack_mode": ack_mode,
        "claimed_at": ago(minutes=2),
        "started_at": ago(minutes=1) if ack_mode in ("EARLY", "LATE") else None,
    }
    held, *rest = why({}, **columns, lease_until=NOW + dt.timedelta(seconds=40))
    assert held == (
        "held by worker w, lease until 2026-03-01 03:00:40Z, for 40 s more (renewed while the worker lives)"
    )
    assert rest == sentences
    lost = why({}, **columns, lease_until=ago(seconds=90))[0]
    assert lost.startswith("held by worker w, whose lease ran out 1.5 min ago: lost;")


def test_ended_jobs_tell_how() -> None:
    dead = {"status": "DEAD", "buried_at": ago(days=2), "last_error": "\n ValueError: no\nTraceback"}
    assert why({}, **dead) == ["dead for 2 d: ValueError: no", "requeue with: celery -A APP pgbroker requeue 17"]
    assert "held by job 19, so it cannot be requeued" in why({"key_holder": 19}, **dead)[1]
    ended = {"finished_at": ago(minutes=5), "claimed_at": ago(minutes=7), "started_at": ago(minutes=6)}
    assert why({}, status="DONE", result_state="SUCCESS", **ended) == ["ended 5 min ago, after 1 min (SUCCESS)"]
    assert why({}, status="DONE", result_state="RETRY", **ended) == [
        "handed on 5 min ago, after 1 min (RETRY): a newer job of the same task goes on"
    ]
    cancelled = {"status": "CANCELLED", "result_state": "PURGED", "last_error": "queue purged"}
    assert why({}, **cancelled, finished_at=ago(minutes=5)) == ["cancelled 5 min ago (PURGED): queue purged"]


def test_the_first_line_that_says_something() -> None:
    assert [first_line(text) for text in (None, "", "\n\n  a \nb")] == ["", "", "a"]
