"""Every way in which a task ends: its row, its result, its events, its dedupe key.

One worker of each pool gets all tasks at once. Which line of the table each test proves stands in
docs/reference/state-table.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from celery.utils import uuid
from state_site import Row, Seen, States, dead, done, key_of, waiting
from state_tasks import MODES
from worker_site import POOLS, Site

from pgbroker import DuplicateJob, JobQueue

MAX_REQUEUES = 2

TRACEBACK = r"^ValueError: no such luck\nTraceback .*raise "

#: By the name of the task: what is to be seen in the end, and ``last_error`` of its last job.
ENDS: dict[str, tuple[Seen, str | None]] = {
    "succeed": (done(), None),
    "fail": (dead(), TRACEBACK),
    "fail_unacked": (dead(), TRACEBACK),
    "expected": (done("FAILURE"), None),
    "undead": (done("FAILURE"), None),
    "ignore": (done("IGNORED", result="PENDING"), None),
    "reject": (dead(), "^Reject: not for me$"),
    "reject_once": (done(attempts=2, events=("requeued",)), "^Reject: not now$"),
    "reject_always": (
        dead(attempts=MAX_REQUEUES + 1, events=("requeued", "requeued", "buried")),
        f"^put back {MAX_REQUEUES} times, max_requeues reached; last: Reject: never$",
    ),
    "exit": (dead(), "SystemExit.*3"),
    "retry": (Seen((Row("DONE", 1, "RETRY"), Row("DONE", 1, "SUCCESS")), "SUCCESS", ("retried",)), None),
    "retry_in_vain": (
        Seen((Row("DONE", 1, "RETRY"), Row("DEAD", 1, "FAILURE")), "FAILURE", ("retried", "buried")),
        TRACEBACK,
    ),
    # the key passes on to a single task, and to nothing else
    "replace_by_task": (Seen((Row("DONE", 1, "IGNORED"), Row("DONE", 1, "SUCCESS")), "SUCCESS"), None),
    "replace_by_chain": (Seen((Row("DONE", 1, "IGNORED"), Row("DONE", 1, "SUCCESS", False)), "SUCCESS"), None),
    "replace_by_group": (Seen((Row("DONE", 1, "IGNORED"), Row("DONE", 1, "SUCCESS", False)), "SUCCESS"), None),
}

#: Messages that never become a request of Celery's: what ``last_error`` says.
REFUSED = {
    "unknown": "^NotRegistered: worker .* knows no task",
    "undecodable": "^the message cannot be decoded: DecodeError: ",
    "disallowed": "^ContentDisallowed: ",
    "no_call": "^InvalidTaskError: Task keyword arguments must be a mapping$",
}


class Battery:
    """All tasks, published together, and the worker that runs them."""

    def __init__(self, states: States) -> None:
        self.states = states
        self.ids = {(mode, name): states.publish(mode, name) for name in ENDS for mode in MODES}
        self.ids.update({(mode, name): self.publish_odd(mode, name) for name in REFUSED for mode in MODES})
        states.worker(4, options={"max_requeues": MAX_REQUEUES})

    def publish_odd(self, mode: str, name: str) -> str:
        """Publish what is not quite a call of a task."""
        task_id, task = uuid(), f"state.{mode}.{'unknown' if name == 'unknown' else 'succeed'}"
        headers: dict[str, Any] = {"task": task, "id": task_id, "lang": "py"}
        body: Any = [[], {}, {}]
        options: dict[str, Any] = {}
        if name == "undecodable":
            body, options = b"[[], {", {"content_type": "application/json", "content_encoding": "utf-8"}
        elif name == "disallowed":
            options = {"serializer": "pickle"}
        elif name == "no_call":  # protocol 1, where everything stands in the body
            headers, body = {}, {"task": task, "id": task_id, "args": [], "kwargs": 5}
        with self.states.app.producer_or_acquire() as producer:
            producer.publish(
                body,
                routing_key=self.states.queue,
                headers=headers,
                correlation_id=task_id,
                dedupe_key=key_of(task_id),
                **options,
            )
        return task_id


@pytest.fixture(scope="module", params=POOLS)
def battery(request: pytest.FixtureRequest, module_database: Any, tmp_path_factory: Any) -> Iterator[Battery]:
    site = Site(module_database, tmp_path_factory.mktemp(request.param))
    states = States(site, request.param)
    yield Battery(states)
    states.close()
    site.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENDS)
def test_task_ends(name: str, mode: str, battery: Battery) -> None:
    expected, error = ENDS[name]
    task_id = battery.ids[mode, name]
    battery.states.check(task_id, expected, error)
    ours = expected.rows[:1] if name == "replace_by_group" else expected.rows  # Celery's own task gathers the results
    assert battery.states.runs(task_id) == sum(row.attempts for row in ours)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REFUSED)
def test_message_is_refused(name: str, mode: str, battery: Battery) -> None:
    battery.states.check(battery.ids[mode, name], dead(), REFUSED[name])


def test_requeued_by_an_operator(battery: Battery) -> None:
    """PENDING with no attempt counted and its key taken again; refused while somebody else has the key."""
    states = battery.states
    ids = states.publish_both("fail")
    for task_id in ids.values():
        states.check(task_id, dead())
    queue = JobQueue(states.site.database.url)
    jobs = {
        task_id: states.site.rows("select job_id from pgbroker.jobs where task_id = %s", task_id)[0][0]
        for task_id in ids.values()
    }
    states.site.rows("select pgbroker.pause_queue(%s)", states.queue)
    twin = states.app.tasks["state.early.succeed"].apply_async(dedupe_key=key_of(ids["early"]))
    with pytest.raises(DuplicateJob) as caught:
        queue.requeue(jobs[ids["early"]])
    assert caught.value.task_id == twin.id
    assert states.seen(ids["early"]) == dataclasses.replace(dead(), key="PENDING")
    assert queue.requeue(jobs[ids["late"]]) == jobs[ids["late"]]
    assert states.seen(ids["late"]) == waiting(0, ("buried", "requeued"), result="FAILURE")
    states.site.rows("select pgbroker.pause_queue(%s, false)", states.queue)
    states.check(ids["late"], dead(events=("buried", "requeued", "buried")), TRACEBACK)
    states.wait_status("DONE", twin.id)
    assert queue.requeue(jobs[ids["early"]]) == jobs[ids["early"]]
    states.check(ids["early"], dead(events=("buried", "requeued", "buried")), TRACEBACK)
    assert states.runs(ids["early"]) == states.runs(ids["late"]) == 2
