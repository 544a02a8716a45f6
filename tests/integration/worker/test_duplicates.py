"""Dedupe keys and duplicates under a real worker: who holds a key, and what a duplicate's result is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from celery import group
from duplicate_tasks import CLASSES, gate, register
from worker_site import HERE, Site, Worker, wait_until

from pgbroker import JobQueue


class Duplicates:
    """The tasks, and a gate that holds them up."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.app = register(site.make_app())
        self.tasks = self.app.tasks

    def worker(self, concurrency: int = 3) -> Worker:
        return self.site.worker("prefork", concurrency, imports=["duplicate_tasks"])

    def wait_held(self, count: int = 1) -> None:
        """Wait until so many tasks stand before the gate."""
        wait_until(lambda: self.site.record.count("hold") == count, what=self.site.describe)

    def open_gate(self) -> None:
        gate(self.site.record.path).touch()

    def holder(self, key: str = "k") -> str | None:
        """The task that holds a key."""
        rows = self.site.rows("select task_id from pgbroker.jobs_live where dedupe_key = %s", key)
        return rows[0][0] if rows else None


@pytest.fixture
def dups(site: Site) -> Iterator[Duplicates]:
    made = Duplicates(site)
    yield made
    made.app.close()


# -- results --------------------------------------------------------------------------------------------


def test_duplicates_end_with_the_live_job(dups: Duplicates) -> None:
    """A plain call before it begins and one while it runs, and members of a group with our task class."""
    plain, ours = dups.tasks["dup.plain.hold"], dups.tasks["dup.ours.hold"]
    live = plain.apply_async(dedupe_key="k")
    twins = [plain.apply_async(dedupe_key="k")]
    dups.worker()
    dups.wait_held()
    twins.append(plain.apply_async(dedupe_key="k"))
    whole = group([ours.si().set(dedupe_key="k"), ours.si().set(dedupe_key="k")])()
    ids = [live.id, *(twin.id for twin in twins), *(member.id for member in whole)]
    assert len(set(ids)) == 5
    assert dups.site.statuses() == {"RUNNING": 1}
    dups.open_gate()
    assert [twin.get(timeout=10) for twin in twins] == ["held", "held"]
    assert whole.get(timeout=10) == ["held", "held"]
    assert dups.site.record.count("hold") == 1
    story = dups.site.rows("select count(*), min(leads_to), max(leads_to) from pgbroker.aliases")
    assert story == [(4, live.id, live.id)]


def test_a_duplicate_ends_with_a_lost_worker(dups: Duplicates) -> None:
    live = dups.tasks["dup.plain.hold"].apply_async(dedupe_key="k")
    twin = dups.tasks["dup.plain.hold"].apply_async(dedupe_key="k")
    options = {"lease_seconds": 2, "reap_interval": 0.5}
    worker = dups.site.worker("solo", 1, imports=["duplicate_tasks"], options=options)
    wait_until(lambda: dups.site.job(live.id).get("started_at"), what=dups.site.describe)
    worker.kill()
    dups.site.worker("solo", 1, imports=["duplicate_tasks"], options=options)
    with pytest.raises(Exception, match="worker lost after start"):
        twin.get(timeout=10)
    assert dups.holder() is None


@pytest.mark.parametrize("name", CLASSES)
def test_a_child_that_was_a_duplicate_leads_to_the_live_job(dups: Duplicates, name: str) -> None:
    dups.worker(1)
    parent = dups.tasks[f"dup.{name}.parent"].delay()
    first, second = parent.get(timeout=10)
    assert dups.holder() == first
    assert (second == first) is (name == "ours")
    assert dups.site.record.count("refused") == (1 if name == "ours" else 0)
    assert [child.id for child in parent.children] == [first, second]
    dups.app.backend.store_result(first, "stored", "SUCCESS")
    assert [child.get(timeout=5) for child in parent.children] == ["stored", "stored"]


# -- keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_a_single_replacement_keeps_the_key(dups: Duplicates, name: str) -> None:
    dups.worker()
    task = dups.tasks[f"dup.{name}.replace"]
    live = task.apply_async(("task",), dedupe_key="k")
    dups.wait_held()
    wait_until(lambda: dups.site.statuses([live.id]) == {"DONE": 1, "RUNNING": 1}, 5, dups.site.describe)
    assert dups.holder() == live.id
    twin = task.apply_async(("task",), dedupe_key="k")
    dups.open_gate()
    assert (live.get(timeout=10), twin.get(timeout=10)) == ("held", "held")
    wait_until(lambda: dups.holder() is None, what=dups.site.describe)
    assert dups.site.record.count("hold") == 1


@pytest.mark.parametrize("by", ["chain", "group", "chord"])
@pytest.mark.parametrize("name", CLASSES)
def test_any_other_replacement_releases_the_key(dups: Duplicates, name: str, by: str) -> None:
    dups.worker()
    task = dups.tasks[f"dup.{name}.replace"]
    live = task.apply_async((by,), dedupe_key="k")
    twin = task.apply_async((by,), dedupe_key="k")
    dups.wait_held(2 if by == "group" else 1)
    wait_until(lambda: dups.holder() is None, 5, dups.site.describe)
    later = task.apply_async((by,), dedupe_key="k", countdown=600)
    assert dups.holder() == later.id
    dups.open_gate()
    expected = ["held", "held"] if by == "group" else "held"
    assert (live.get(timeout=15), twin.get(timeout=15)) == (expected, expected)


def test_retries_keep_the_key_whoever_published_first(dups: Duplicates) -> None:
    jobs = JobQueue(dups.site.database.url)
    keys = []
    for name in CLASSES:
        task = f"dup.{name}.retry"
        for way in ("call", "sql", "queue"):
            keys.append(f"{name} {way}")
            if way == "call":
                dups.tasks[task].apply_async(dedupe_key=keys[-1])
            elif way == "sql":
                dups.site.rows("select pgbroker.enqueue(%s, dedupe_key => %s)", task, keys[-1])
            else:
                jobs.enqueue(task, {}, dedupe_key=keys[-1])
    jobs.close()
    dups.worker()
    wait_until(lambda: dups.site.statuses() == {"DONE": 2 * len(keys)}, what=dups.site.describe)
    found = dups.site.rows("select dedupe_key, count(*) from pgbroker.job_log group by 1")
    assert dict(found) == dict.fromkeys(keys, 2)
    assert [dups.holder(key) for key in keys] == [None] * len(keys)


def test_a_periodic_task_never_piles_up(dups: Duplicates) -> None:
    """Celery's beat, with nobody to run what it sends; then with a worker that runs it for a while."""
    site = dups.site
    entry = {"task": "dup.plain.hold", "schedule": 0.1, "options": {"dedupe_key": "k"}}
    conf = {"beat_schedule": {"tick": entry}, "beat_max_loop_interval": 0.1, "imports": ["duplicate_tasks"]}
    log = site.folder / "beat.log"
    command = [sys.executable, "-m", "celery", "-A", "app", "beat", "-l", "info"]
    command += ["-s", str(site.folder / "schedule"), "--pidfile", str(site.folder / "beat.pid")]
    with log.open("wb") as output:
        beat = subprocess.Popen(command, cwd=HERE, env=site.environment(**conf), stdout=output, stderr=output)

    def ticks() -> int:
        assert beat.poll() is None, log.read_text()
        return len(re.findall("Sending due task tick", log.read_text()))

    try:
        for round in (1, 2):
            sent = ticks()
            wait_until(lambda sent=sent: ticks() >= sent + 5, 20, log.read_text)
            assert site.rows("select count(*) from pgbroker.jobs") == [(1,)]
            if round == 1:
                dups.worker(2)
                dups.wait_held()
        dups.open_gate()
        wait_until(lambda: site.record.count("hold") >= 3, 10, site.describe)
        assert site.rows("select count(*) from pgbroker.jobs_live")[0][0] <= 1
    finally:
        beat.terminate()
        beat.wait(20)
    assert "Traceback" not in log.read_text()
