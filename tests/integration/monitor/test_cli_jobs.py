"""``celery -A APP pgbroker jobs``, ``job`` and ``cancel``, as an operator or a script sees them."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Desk

NOWHERE = "pgbroker://user:s3cret%40@127.0.0.1:1/db"


def test_jobs_prints_one_aligned_line_for_each(desk: Desk, name: str) -> None:
    dead = desk.bury(name, "ValueError: " + "x" * 300 + "\nTraceback\x1b[31m")
    waiting = desk.put(name, "shop.a_task_with_a_long_name", priority=3)
    done = desk.call("jobs", "--queue", name)
    assert (done.exit_code, done.stderr) == (0, "")
    head, first, second = done.stdout.splitlines()
    assert head.split() == [
        "ID",
        "STATUS",
        "TASK",
        "QUEUE",
        "PRIORITY",
        "ATTEMPTS",
        "ENQUEUED",
        "RUN",
        "AFTER",
        "ERROR",
    ]
    assert first.split()[:6] == [str(waiting), "PENDING", "shop.a_task_with_a_long_name", name, "3", "0"]
    assert second.split()[:2] == [str(dead), "DEAD"]
    assert {line.index("shop.") for line in (first, second)} == {head.index("TASK")}
    assert len(second) == 160
    assert second.endswith("xxx...")
    assert "\x1b" not in done.stdout


def test_jobs_in_json_are_one_array_with_iso_times(desk: Desk, name: str) -> None:
    desk.bury(name, task="shop.bill")
    job_id = desk.put(name)
    done = desk.call("jobs", "--queue", name, "--task", "shop.ship", "--status", "pending", "--json", "--limit", 5)
    (row,) = json.loads(done.stdout)
    assert (row["job_id"], row["status"], row["last_error"]) == (job_id, "PENDING", None)
    assert dt.datetime.fromisoformat(row["enqueued_at"]).utcoffset() == dt.timedelta(0)
    assert json.loads(desk.call("jobs", "--queue", "nobody's", "--json").stdout) == []
    assert desk.call("jobs", "--queue", "nobody's").stdout == "no such jobs\n"


def test_job_is_a_page_with_the_whole_error(desk: Desk, name: str) -> None:
    error = "ValueError: no such order\nTraceback (most recent call last):\n  File ...\x1b[31m" + "y" * 200
    job_id = desk.bury(name, error, dedupe_key="order 7")
    done = desk.call("job", job_id)
    lines = done.stdout.splitlines()
    assert (done.exit_code, lines[0]) == (0, f"job {job_id}  shop.ship  DEAD")
    assert lines[1].startswith("  dead for ")
    assert lines[2] == f"  requeue with: celery -A APP pgbroker requeue {job_id}"
    assert "    " + error.splitlines()[-1].replace("\x1b", " ") in lines
    assert "dedupe key    order 7" in lines
    assert "arguments     () {'order': 7}" in lines
    assert f"worker        {desk.worker} (host web-1, pid 4711)" in lines
    assert lines[lines.index("events") + 1].endswith(f"buried after attempt 1 on {desk.worker}")


def test_job_takes_a_task_id_and_gives_json(desk: Desk, name: str) -> None:
    job_id = desk.put(name, run_after=3600)
    ((task_id,),) = desk.run("select task_id from pgbroker.jobs where job_id = %s", job_id)
    told = json.loads(desk.call("job", task_id, "--json").stdout)
    assert set(told) == {"duplicate_id", "job", "why", "headers", "events", "result", "other_runs", "asked_at"}
    assert (told["job"]["job_id"], told["job"]["body_bytes"] > 0) == (job_id, True)
    assert told["why"][0].startswith("waits for its ETA in 60 min")
    assert "body" not in told["job"]


def test_a_duplicate_has_the_page_of_the_live_job(desk: Desk, name: str) -> None:
    job_id = desk.put(name, run_after=3600)
    ((task_id,),) = desk.run("select task_id from pgbroker.jobs where job_id = %s", job_id)
    for alias, leads_to in ((f"twin-{name}", task_id), (f"twin-of-twin-{name}", f"twin-{name}")):
        desk.run("select pgbroker.add_alias(%s, %s)", alias, leads_to)
        lines = desk.call("job", alias).stdout.splitlines()
        assert lines[0] == f"task {alias} was a duplicate of task {task_id}: its result is this one's"
        assert lines[1] == f"job {job_id}  shop.ship  PENDING"
        told = json.loads(desk.call("job", alias, "--json").stdout)
        assert (told["duplicate_id"], told["job"]["job_id"]) == (alias, job_id)
    assert json.loads(desk.call("job", task_id, "--json").stdout)["duplicate_id"] is None
    desk.run("delete from pgbroker.jobs where job_id = %s", job_id)
    done = desk.call("job", f"twin-{name}")
    assert done.exit_code == 1
    assert f"'twin-{name}' was a duplicate of task '{task_id}', which ended" in done.stderr


def test_a_finished_job_has_its_page_too(desk: Desk, name: str) -> None:
    job_id = desk.put(name)
    desk.take(name)
    desk.jobs.complete(job_id, desk.worker, [1])
    lines = desk.call("job", job_id).stdout.splitlines()
    assert lines[0] == f"job {job_id}  shop.ship  DONE"
    assert lines[1].startswith("  ended ")
    assert lines[1].endswith(" (SUCCESS)")
    assert "result        [1]" in lines


def test_an_unknown_job_is_1_in_one_line(desk: Desk) -> None:
    for words in (("job", "987654321"), ("job", "nobody", "--json")):
        done = desk.call(*words)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert f"'{words[1]}'" in done.stderr


def test_cancel_ends_what_waits_and_nothing_else(desk: Desk, name: str) -> None:
    running, waiting, by_task = desk.put(name), desk.put(name), desk.put(name)
    task_id = desk.take(name).task_id
    ((other_task,),) = desk.run("select task_id from pgbroker.jobs where job_id = %s", by_task)
    done = desk.call("cancel", waiting, running, other_task, "987654321")
    assert done.exit_code == 1
    assert done.stdout == f"job {waiting}: cancelled\njob {by_task}: cancelled\n"
    first, second = done.stderr.splitlines()
    assert first.startswith(f"Error: job {running} is held by worker {desk.worker} and is not cancelled")
    assert first.endswith(f"celery -A APP control terminate SIGTERM {task_id}")
    assert second == "Error: no job and no task has the id '987654321'"
    assert [desk.status(job_id) for job_id in (running, waiting, by_task)] == ["RUNNING", "CANCELLED", "CANCELLED"]
    # Celery learns of it
    assert desk.run("select outcome from pgbroker.outcome_outbox where job_id = %s", waiting) == [("REVOKED",)]

    again = desk.call("cancel", waiting)
    assert (again.exit_code, again.stderr) == (1, f"Error: job {waiting} has ended already (CANCELLED)\n")
    dead = desk.call("cancel", desk.bury(f"{name}-2"))
    assert (dead.exit_code, "is dead and does not wait" in dead.stderr) == (1, True)


@pytest.mark.parametrize("words", [("jobs", "--status", "LOST"), ("jobs", "--limit", "0"), ("job",), ("cancel",)])
def test_usage_is_2(desk: Desk, words: tuple[str, ...]) -> None:
    done = desk.call(*words)
    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "words",
    [
        "settings",
        "settings history_seconds 1",
        "queues --json",
        "jobs",
        "job 1",
        "dead",
        "requeue 1",
        "requeue --all",
        "cancel 1",
        "pause q",
        "resume q",
        "workers",
        "reap",
        "prune",
    ],
)
def test_unreachable_is_69_without_the_password(desk: Desk, words: str) -> None:
    done = desk.call(*words.split(), broker_url=NOWHERE)
    assert (done.exit_code, done.stdout) == (69, "")
    assert done.stderr.startswith("Error: cannot connect to pgbroker://user:**@127.0.0.1:1/db")
    assert "s3cret" not in done.stderr


def test_commands_work_on_the_schema_of_the_options(desk: Desk) -> None:
    conf: dict[str, Any] = {"broker_transport_options": {"schema": 'odd%" name'}}
    for words in ("queues --all", "jobs", "dead", "workers", "reap", "prune", "settings", "requeue --all"):
        done = desk.call(*words.split(), **conf)
        assert (done.exit_code, done.stderr) == (0, ""), words
    assert desk.call("pause", "q", **conf).exit_code == 1
    assert desk.call("settings", "dead_seconds", 5, **conf).exit_code == 0
    assert desk.run("""select value from "odd%%"" name".settings where name = 'dead_seconds' and %s""", True) == [
        ("5",)
    ]


def test_they_are_commands_of_celery(desk: Desk, name: str) -> None:
    job_id = desk.put(name)
    told = desk.celery("job", job_id)
    assert (told.returncode, told.stdout.splitlines()[0]) == (0, f"job {job_id}  shop.ship  PENDING")
    assert desk.celery("cancel", "987654321").returncode == 1
