"""``celery -A APP pgbroker workers`` and ``reap``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Desk


def test_workers_prints_who_holds_what(fresh_desk: Desk) -> None:
    desk = fresh_desk
    assert desk.call("workers").stdout == "no workers\n"
    desk.attend("a")
    desk.put("a")
    desk.take("a", lease_seconds=600)
    desk.put("b")
    desk.take("b", worker="script", lease_seconds=0.001)
    head, script, own = desk.call("workers").stdout.splitlines()
    assert head.split() == ["WORKER", "HOST", "PID", "HELD", "STARTED", "LEASE", "QUEUES"]
    assert own.split() == [desk.worker, "web-1", "4711", "1", "0", "10", "min", "a"]
    assert script.split()[:5] == ["script", "-", "-", "1", "0"]
    assert "s ago, lost" in script
    found = {row["worker"]: row for row in json.loads(desk.call("workers", "--json").stdout)}
    assert (found[desk.worker]["pid"], found[desk.worker]["queues"]) == (4711, ["a"])
    assert found["script"]["lease_seconds"] < 0


def test_reap_prints_what_it_took_back(fresh_desk: Desk) -> None:
    desk = fresh_desk
    assert desk.call("reap").stdout == "took back 0 jobs\n"
    again, dead, held = desk.put("a"), desk.put("b", max_attempts=1), desk.put("c")
    for queue, seconds in (("a", 0.001), ("b", 0.001), ("c", 60)):
        desk.take(queue, lease_seconds=seconds)
    done = desk.call("reap")
    assert sorted(done.stdout.splitlines()) == sorted(
        [f"job {again}: taken back, now PENDING", f"job {dead}: taken back, now DEAD", "took back 2 jobs"]
    )
    assert [desk.status(job_id) for job_id in (again, dead, held)] == ["PENDING", "DEAD", "RUNNING"]


def test_they_are_commands_of_celery(desk: Desk, name: str) -> None:
    desk.attend(name)
    assert desk.worker in desk.celery("workers").stdout
    assert desk.celery("reap").stdout == "took back 0 jobs\n"
