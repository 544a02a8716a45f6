"""``celery -A APP pgbroker queues``, ``pause`` and ``resume``."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

from pgbroker.postgres.pool import pool_for
from pgbroker.queue.routing import QueueTraits, routing_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Desk


def line_of(desk: Desk, queue: str, *words: str) -> list[str]:
    lines = desk.call("queues", *words).stdout.splitlines()
    assert lines[0].split() == ["QUEUE", "KIND", "READY", "SCHEDULED", "RUNNING", "DEAD", "CONSUMERS", "LAG", "PAUSED"]
    return next((line.split() for line in lines if line.startswith(f"{queue} ")), [])


def test_queues_prints_a_line_for_each(desk: Desk, name: str) -> None:
    desk.put(name)
    desk.put(name, run_after=60)
    desk.attend(name)
    assert line_of(desk, name)[:7] == [name, "job", "1", "1", "0", "0", "1"]
    assert line_of(desk, name)[-2:] == ["s", "-"]
    (found,) = [queue for queue in json.loads(desk.call("queues", "--json").stdout) if queue["queue"] == name]
    assert (found["ready"], found["scheduled"], found["consumers"], found["paused_at"]) == (1, 1, 1, None)


def test_transient_queues_are_shown_with_all(desk: Desk, name: str) -> None:
    traits = QueueTraits(is_transient=True, expires_seconds=60)
    pool_for(desk.options).query(*routing_for("pgbroker").declare_queue(name, traits))
    assert line_of(desk, name) == []
    assert line_of(desk, name, "--all")[:3] == [name, "transient", "0"]
    refused = desk.call("pause", name)
    assert (refused.exit_code, "is transient" in refused.stderr) == (1, True)


def test_an_empty_database_has_no_queues(fresh_desk: Desk) -> None:
    assert fresh_desk.call("queues").stdout == "no queues yet\n"
    refused = fresh_desk.call("pause", "celery")
    assert (refused.exit_code, refused.stderr) == (1, "Error: no queue named 'celery'; there is none yet\n")


def test_a_paused_queue_takes_jobs_and_gives_none(desk: Desk, name: str) -> None:
    desk.put(name)
    desk.take(name)
    done = desk.call("pause", name)
    assert (done.exit_code, done.stdout) == (0, f"paused queue '{name}'; 1 job held by workers will go on\n")
    assert desk.call("pause", name).stdout == f"queue '{name}' was paused already\n"
    desk.put(name)
    assert desk.jobs.claim("w", queues=(name,)) is None
    assert line_of(desk, name)[-3] == "since"
    assert desk.call("resume", name).stdout == f"resumed queue '{name}'\n"
    assert desk.call("resume", name).stdout == f"queue '{name}' was not paused\n"
    assert desk.take(name)


def test_resume_wakes_who_sleeps(desk: Desk, name: str, wait_until: Callable[[Callable[[], object]], None]) -> None:
    desk.put(name)
    desk.call("pause", name)
    woken: list[bool] = []
    sleeper = threading.Thread(target=lambda: woken.append(desk.jobs.listen(name, 25)))
    sleeper.start()
    wait_until(lambda: desk.run("select 1 from pgbroker.sleepers where queue = %s", name))
    began = time.monotonic()
    desk.call("resume", name)
    sleeper.join(25)
    assert woken == [True]
    assert time.monotonic() - began < 5


def test_an_unknown_queue_is_refused_with_the_nearest(desk: Desk, name: str) -> None:
    desk.put(name)
    for command in ("pause", "resume"):
        done = desk.call(command, name[:-1])
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith(f"Error: no queue named '{name[:-1]}'; did you mean 'q-")
    assert desk.run("select 1 from pgbroker.queues where name = %s", name[:-1]) == []


def test_a_queue_that_sql_filled_undeclared_can_be_paused(desk: Desk, name: str) -> None:
    desk.run("select pgbroker.enqueue('shop.ship', queue => %s)", name)
    assert desk.run("select 1 from pgbroker.queues where name = %s", name) == []
    assert desk.call("pause", name).exit_code == 0
    assert desk.jobs.claim("w", queues=(name,)) is None


def test_they_are_commands_of_celery(desk: Desk, name: str) -> None:
    desk.put(name)
    assert name in desk.celery("queues").stdout
    assert desk.celery("resume", name + "x").returncode == 1
