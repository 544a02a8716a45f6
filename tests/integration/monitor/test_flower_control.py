"""What Flower's buttons and its API do to tasks and workers, and what a Flower that is killed leaves behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from flower_site import Flower, FlowerSite, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from ...conftest import Database

WORKER = "w1@shop"


@pytest.fixture(scope="module")
def site(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerSite]:
    """A worker that may do all that can be asked of one."""
    site = FlowerSite(module_database, tmp_path_factory.mktemp("shop"))
    site.worker("-c", "2", worker_pool_restarts=True)
    yield site
    site.close()


@pytest.fixture(scope="module")
def flower(site: FlowerSite) -> Flower:
    """Flower, once it hears the worker: which it told to send events, since that was started without ``-E``."""
    flower = site.flower()
    flower.wait_for_worker(WORKER)
    wait_until(lambda: "Events of group {task} enabled" in site.logs[0].read_text(), what=flower.output)
    flower.wait_for_events(WORKER)
    return flower


def stats(flower: Flower) -> dict[str, Any]:
    found: dict[str, Any] = flower.ask(f"/api/workers?refresh=1&workername={WORKER}").json[WORKER]["stats"]
    return found


def job_status(site: FlowerSite, task_id: str) -> str:
    return str(site.run("select status::text from pgbroker.job_log where task_id = %s", task_id)[0][0])


# -- tasks ------------------------------------------------------------------------------------------


def test_calls_tasks_and_shows_results(flower: Flower) -> None:
    assert flower.post("/api/task/apply/shop.add", {"args": [2, 3]}).json["result"] == 5
    for how in ("async-apply", "send-task"):
        called = flower.post(f"/api/task/{how}/shop.add", {"args": [2], "kwargs": {"y": 4}})
        assert (called.status, called.json["state"]) == (200, "PENDING")
        task = called.json["task-id"]
        assert flower.ask(f"/api/task/result/{task}?timeout=20").json["result"] == 6
        known = flower.wait_for_task(task, "SUCCESS")
        assert (known["name"], known["result"], known["worker"]) == ("shop.add", "6", WORKER)
        page = flower.ask(f"/task/{task}")
        assert (page.status, WORKER in page.text) == (200, True)


def test_shows_failures(flower: Flower) -> None:
    task = flower.post("/api/task/async-apply/shop.charge", {"args": ["A-7"]}).json["task-id"]
    assert "no card on file for A-7" in flower.wait_for_task(task, "FAILURE")["exception"]
    result = flower.ask(f"/api/task/result/{task}").json
    assert (result["state"], "Traceback" in result["traceback"]) == ("FAILURE", True)
    assert task in flower.ask("/api/tasks?state=FAILURE").json


def test_terminates_a_task_that_runs(site: FlowerSite, flower: Flower) -> None:
    task = flower.post("/api/task/async-apply/shop.ship", {"args": ["A-8"]}).json["task-id"]
    flower.wait_for_task(task, "STARTED")
    wait_until(lambda: task in flower.ask(f"/worker/{WORKER}").text)
    assert flower.post(f"/api/task/revoke/{task}?terminate=true").status == 200
    flower.wait_for_task(task, "REVOKED")
    wait_until(lambda: job_status(site, task) == "CANCELLED")
    assert flower.ask(f"/api/task/result/{task}").json["state"] == "REVOKED"


def test_revokes_a_task_that_waits(site: FlowerSite, flower: Flower) -> None:
    called = flower.post("/api/task/async-apply/shop.add", {"args": [1, 1], "countdown": 600})
    task = called.json["task-id"]
    assert job_status(site, task) == "PENDING"
    assert flower.post(f"/api/task/revoke/{task}").status == 200
    assert job_status(site, task) == "CANCELLED"
    wait_until(lambda: flower.ask(f"/api/task/result/{task}").json["state"] == "REVOKED")


# -- workers ----------------------------------------------------------------------------------------


def test_sizes_the_pool(flower: Flower) -> None:
    at_first = len(stats(flower)["pool"]["processes"])
    assert flower.post(f"/api/worker/pool/grow/{WORKER}?n=2").status == 200
    wait_until(lambda: len(stats(flower)["pool"]["processes"]) == at_first + 2)
    assert flower.post(f"/api/worker/pool/shrink/{WORKER}?n=1").status == 200
    wait_until(lambda: len(stats(flower)["pool"]["processes"]) == at_first + 1)


def test_sets_time_limits_and_restarts_the_pool(flower: Flower) -> None:
    """Celery takes changed limits up when it makes its strategies anew, which a restart of the pool brings."""
    answer = flower.post("/api/task/timeout/shop.ship", workername=WORKER, soft="0.5", hard="5")
    assert (answer.status, answer.json["message"]) == (200, "time limits set successfully")
    before = set(stats(flower)["pool"]["processes"])
    assert flower.post(f"/api/worker/pool/restart/{WORKER}").status == 200
    wait_until(lambda: set(stats(flower)["pool"]["processes"]) != before)
    task = flower.post("/api/task/async-apply/shop.ship", {"args": ["A-9"]}).json["task-id"]
    assert "SoftTimeLimitExceeded" in flower.wait_for_task(task, "FAILURE")["exception"]


def test_sets_the_range_of_autoscaling(site: FlowerSite, flower: Flower) -> None:
    """Only where there is an autoscaler, as with any broker."""
    refused = flower.post(f"/api/worker/pool/autoscale/{WORKER}?min=1&max=4")
    assert (refused.status, "Autoscale not enabled" in refused.text) == (403, True)
    scaled = site.worker("--autoscale=2,1", "-Q", "other", name="w2")
    flower.wait_for_worker(scaled)
    assert flower.post(f"/api/worker/pool/autoscale/{scaled}?min=1&max=3").status == 200
    found = flower.ask(f"/api/workers?refresh=1&workername={scaled}").json[scaled]["stats"]["autoscaler"]
    assert (found["min"], found["max"]) == (1, 3)


def test_adds_and_cancels_consumers(flower: Flower) -> None:
    path = f"/api/worker/queue/{{}}-consumer/{WORKER}?queue=extra"
    assert flower.post(path.format("add")).json["message"] == "add consumer extra"
    wait_until(lambda: flower.lengths().get("extra", {}).get("consumers") == 1)
    called = flower.post("/api/task/apply/shop.add", {"args": [1, 2], "queue": "extra"})
    assert called.json["result"] == 3
    assert flower.post(path.format("cancel")).json["message"] == "no longer consuming from extra"
    flower.ask(f"/api/workers?refresh=1&workername={WORKER}")
    wait_until(lambda: "extra" not in flower.lengths())


def test_limits_the_rate_and_shuts_down(site: FlowerSite, flower: Flower) -> None:
    answer = flower.post("/api/task/rate-limit/shop.add", workername=WORKER, ratelimit="1/m")
    assert (answer.status, answer.json["message"]) == (200, "new rate limit set successfully")
    first, second = (flower.post("/api/task/async-apply/shop.add", {"args": [1, 1]}).json["task-id"] for _ in range(2))
    flower.wait_for_task(first, "SUCCESS")
    flower.wait_for_task(second, "RECEIVED")
    assert flower.post(f"/api/worker/shutdown/{WORKER}").json["message"] == "Shutting down!"
    assert site.processes[0].wait(30) == 0
    assert job_status(site, second) == "PENDING"
    wait_until(lambda: flower.ask("/api/workers?status=1").json[WORKER] is False, 30)


# -- its end ----------------------------------------------------------------------------------------


def test_a_killed_flower_leaves_nothing(database: Database, tmp_path: Path) -> None:
    """Its queues and consumers go when their time is over: ten seconds, and what a queue has for itself."""
    site = FlowerSite(database, tmp_path)
    try:
        conf = {"broker_transport_options": {"lease_seconds": 2}, "event_queue_expires": 1}
        site.worker("-P", "solo", "-E", **conf)
        flower = site.flower(**conf)
        flower.wait_for_events(WORKER)
        flower.wait_for_worker(WORKER)
        left = """
            select 'queue', name from pgbroker.transient_queues where name !~ 'pidbox'
            union all select 'consumer', tag from pgbroker.consumers where queue !~ 'pidbox' and queue <> 'celery'
            union all select 'mail', queue from pgbroker.mailbox where queue !~ 'pidbox'
            union all select 'binding', queue from pgbroker.bindings where queue !~ 'pidbox' and queue <> 'celery'
        """
        assert {what for what, _ in site.run(left)} >= {"queue", "consumer", "binding"}
        os.killpg(flower.process.pid, signal.SIGKILL)
        flower.process.wait(10)
        wait_until(lambda: site.run(left) == [], 40, lambda: site.run(left))
        connections = "select count(*) from pg_stat_activity where datname = current_database()"
        assert site.run(connections)[0][0] < 8
    finally:
        site.close()
