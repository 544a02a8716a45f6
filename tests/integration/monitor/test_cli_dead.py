"""``celery -A APP pgbroker dead`` and ``requeue``."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pgbroker.monitor import admin

if TYPE_CHECKING:
    from .conftest import Desk


def test_dead_lists_them_with_their_reason_on_one_line(desk: Desk, name: str) -> None:
    ids = [desk.bury(name, f"ValueError: {number}\nTraceback", task=f"shop.t{number}") for number in range(3)]
    done = desk.call("dead", "--queue", name, "--limit", 2)
    head, *lines, rest = done.stdout.splitlines()
    assert head.split() == ["ID", "TASK", "QUEUE", "ATTEMPTS", "BURIED", "ERROR"]
    assert [int(line.split()[0]) for line in lines] == [ids[2], ids[1]]
    assert lines[0].endswith("ValueError: 2 Traceback")
    assert rest == "(2 of 3; --limit shows more)"
    (row,) = json.loads(desk.call("dead", "--queue", name, "--task", "*t1", "--json").stdout)
    assert (row["job_id"], row["status"], row["last_error"]) == (ids[1], "DEAD", "ValueError: 1\nTraceback")
    assert desk.call("dead", "--queue", "nobody's").stdout == "no dead letters\n"


def test_requeue_by_id_gives_another_life(desk: Desk, name: str) -> None:
    first, second = desk.bury(name), desk.bury(name)
    ((task_id,),) = desk.run("select task_id from pgbroker.jobs where job_id = %s", second)
    planned = desk.call("requeue", "--dry-run", first, task_id)
    assert (planned.exit_code, planned.stdout) == (0, "would requeue 2 dead letters\n")
    assert [desk.status(first), desk.status(second)] == ["DEAD", "DEAD"]
    done = desk.call("requeue", task_id, first)
    assert (done.exit_code, done.stdout) == (0, f"job {second}: requeued\njob {first}: requeued\n")
    job = desk.jobs.get(first)
    assert job is not None
    assert (str(job.status), job.attempts) == ("PENDING", 0)


def test_requeue_refuses_what_it_cannot_do_and_does_the_rest(desk: Desk, name: str) -> None:
    taken, free = desk.bury(name, dedupe_key="k"), desk.bury(name)
    holder = desk.put(name, dedupe_key="k")
    done = desk.call("requeue", taken, "987654321", free)
    assert (done.exit_code, done.stdout) == (1, f"job {free}: requeued\n")
    refused, unknown = done.stderr.splitlines()
    assert refused.startswith(f"Error: job {taken} is not requeued: job {holder} (task ")
    assert refused.endswith("holds its dedupe key and has not ended")
    assert unknown.startswith("Error: no dead letter has the id '987654321'")
    assert desk.status(taken) == "DEAD"
    assert desk.call("requeue", holder).exit_code == 1


def test_requeue_does_not_wait_for_an_open_transaction(desk: Desk, name: str) -> None:
    job_id, other = desk.bury(name, dedupe_key="k"), desk.bury(name)
    with closing(desk.database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        cursor.execute("select pgbroker.enqueue('shop.ship', queue => %s, dedupe_key => 'k')", [name])
        began = time.monotonic()
        done = desk.call("requeue", job_id)
        assert (done.exit_code, "an open transaction holds its dedupe key" in done.stderr) == (1, True)
        bulk = desk.call("requeue", "--queue", name)
        assert time.monotonic() - began < 5
        assert bulk.exit_code == 0
        assert bulk.stdout.splitlines()[0] == "requeued 1 dead letter"
        assert bulk.stdout.splitlines()[1].startswith("skipped 1: an open transaction")
        connection.rollback()
    assert [desk.status(job_id), desk.status(other)] == ["DEAD", "PENDING"]
    assert desk.call("requeue", job_id).exit_code == 0


def test_requeue_of_many_skips_taken_keys_and_counts(desk: Desk, name: str) -> None:
    ids = [desk.bury(name, task=f"shop.t{number % 2}", dedupe_key=f"k{number // 4}") for number in range(6)]
    desk.put(name, dedupe_key="k1")
    words = ("requeue", "--queue", name, "--task", "shop.t*")
    planned = desk.call(*words, "--dry-run")
    assert planned.stdout == "would requeue 4 dead letters\nskipped 2: a live job holds the dedupe key\n"
    # four of them share a key, so that only the first can live
    done = desk.call(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "requeued 1 dead letter\nskipped 5: a live job holds the dedupe key\n"
    assert [desk.status(job_id) for job_id in ids] == ["PENDING"] + ["DEAD"] * 5


def test_requeue_of_many_goes_in_batches(desk: Desk, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "REQUEUE_BATCH", 3)
    ids = [desk.bury(name) for _ in range(7)]
    steps: list[int] = []
    counts = admin.requeue_matching(desk.options, queue=name, on_progress=lambda so_far: steps.append(so_far.requeued))
    assert (counts.requeued, steps) == (7, [3, 6, 7])
    assert {desk.status(job_id) for job_id in ids} == {"PENDING"}
    transactions = desk.run("select count(distinct xmin::text) from pgbroker.jobs_live where queue = %s", name)
    # each job is written in a subtransaction of its batch
    assert transactions == [(7,)]
    events = "select count(distinct happened_at) from pgbroker.job_events where kind = 'requeued' and job_id = any (%s)"
    assert desk.run(events, ids) == [(7,)]


def test_requeue_all_takes_every_queue(fresh_desk: Desk) -> None:
    ids = [fresh_desk.bury("a"), fresh_desk.bury("b")]
    assert fresh_desk.call("requeue", "--all").stdout == "requeued 2 dead letters\n"
    assert [fresh_desk.status(job_id) for job_id in ids] == ["PENDING", "PENDING"]
    assert fresh_desk.call("requeue", "--all").stdout == "requeued 0 dead letters\n"


@pytest.mark.parametrize("words", ["requeue", "requeue --dry-run", "requeue 1 --all", "requeue 1 --queue q"])
def test_requeue_without_a_clear_aim_is_2(desk: Desk, words: str) -> None:
    done = desk.call(*words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--all" in done.stderr


def test_they_are_commands_of_celery(desk: Desk, name: str) -> None:
    job_id = desk.bury(name)
    listed = desk.celery("dead", "--queue", name, "--json")
    assert [row["job_id"] for row in json.loads(listed.stdout)] == [job_id]
    assert desk.celery("requeue", job_id).returncode == 0
