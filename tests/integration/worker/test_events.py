"""Events of workers: whoever listens hears all of them in their order, whichever pool runs the tasks."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from worker_site import HERE, PREFORK_FIRST, Site, wait_until

LIFE = ["task-received", "task-started", "task-succeeded"]


@contextmanager
def receiver(site: Site) -> Iterator[list[dict[str, Any]]]:
    """Listen for the length of the block; the events so far."""
    heard: list[dict[str, Any]] = []
    with site.make_app().connection_for_read() as connection:
        capturing = site.app.events.Receiver(connection, handlers={"*": heard.append})
        thread = threading.Thread(target=lambda: capturing.capture(limit=None, timeout=None, wakeup=False))
        bound = "select count(*) from pgbroker.bindings where exchange = 'celeryev'"
        before = site.rows(bound)[0][0]
        thread.start()
        wait_until(lambda: site.rows(bound)[0][0] > before)
        yield heard
        capturing.should_stop = True
        thread.join(15)
        assert not thread.is_alive()


def of_task(heard: list[dict[str, Any]], task_id: str) -> list[str]:
    return [event["type"] for event in list(heard) if event.get("uuid") == task_id]


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_hears_each_event_of_each_task_in_order(pool: str, site: Site) -> None:
    worker = site.worker(pool, 2, "-E")
    with receiver(site) as heard:
        add = site.app.tasks["app.add"]
        ids = [add.delay(number, 1).id for number in range(60)]
        wait_until(lambda: sum(e["type"] == "task-succeeded" for e in list(heard)) == 60, 20, site.describe)
        clocks = [event["clock"] for event in list(heard) if event["type"].startswith("task-")]
        worker.terminate()
        assert worker.wait() == 0
        wait_until(lambda: any(e["type"] == "worker-offline" for e in list(heard)), what=lambda: heard[-3:])
    assert [of_task(heard, task_id) for task_id in ids] == [LIFE] * 60
    assert pool == "gevent" or clocks == sorted(clocks)


def test_hears_again_after_nobody_listened(site: Site) -> None:
    site.worker("prefork", 1, "-E")
    add = site.app.tasks["app.add"]
    for _ in range(2):
        with receiver(site) as heard:
            first = add.delay(1, 1).id
            wait_until(lambda first=first, heard=heard: of_task(heard, first) == LIFE, what=lambda: heard)
        assert add.delay(2, 2).get(timeout=10) == 4
        assert site.rows("select count(*) from pgbroker.mailbox where exchange = 'celeryev'") == [(0,)]


def test_events_reach_job_queues_and_queues_of_limited_length_as_well(site: Site) -> None:
    site.worker("prefork", 1, "-E", "--without-heartbeat")
    site.rows("select pgbroker.declare_exchange('celeryev', 'topic', true, false, null)")
    site.rows("select pgbroker.declare_queue('audit')")
    site.rows("select pgbroker.declare_queue('last', '{}', true, p_expires_seconds => 600, p_max_length => 4)")
    for queue, pattern in (("audit", r"^task\..*$"), ("last", ".*")):
        assert site.rows("select pgbroker.bind_queue('celeryev', %s, '#', %s)", queue, pattern) == [("bound",)]
    for number in range(10):
        assert site.app.tasks["app.add"].delay(number, 1).get(timeout=10) == number + 1

    def succeeded() -> int:
        bodies = site.rows("select convert_from(body, 'utf8') from pgbroker.jobs_live where queue = 'audit'")
        return sum(body.count("task-succeeded") for (body,) in bodies)

    wait_until(lambda: succeeded() == 10, what=site.describe)
    assert site.rows("select count(*) from pgbroker.mailbox where queue = 'last'")[0][0] <= 4


def test_events_of_a_lost_connection_are_sent_on_the_next_one(site: Site) -> None:
    worker = site.worker("prefork", 1, "-E")
    backends = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    of_worker = [pid for (pid,) in site.rows(backends)]
    with receiver(site) as heard:
        task = site.app.tasks["app.sleep"].delay(2).id
        wait_until(lambda: "task-started" in of_task(heard, task), what=lambda: heard)
        site.rows("select pg_terminate_backend(pid) from unnest(%s) pid", of_worker)
        wait_until(lambda: "Connection to broker lost" in worker.output(), what=site.describe)
        wait_until(lambda: "task-succeeded" in of_task(heard, task), 20, site.describe)


# -- Celery's own listeners -------------------------------------------------------------------------


def celery(site: Site, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "celery", "-A", "app", *words]
    return subprocess.Popen(command, cwd=HERE, env={**site.environment(), "TERM": "xterm"}, **options)


def test_celery_events_dumps_them(site: Site) -> None:
    site.worker("prefork", 1, "-E")
    output = site.folder / "dump"
    with output.open("wb") as sink:
        dump = celery(site, "events", "--dump", stdout=sink, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "heartbeat:" in output.read_text(), 20, output.read_text)
        task = site.app.tasks["app.add"].delay(1, 1).id
        wait_until(lambda: output.read_text().count(task) >= 3, what=output.read_text)
        dump.send_signal(signal.SIGINT)
        dump.wait(15)
    finally:
        dump.kill()
        dump.wait()
    assert "task received" in output.read_text()
    assert "task succeeded" in output.read_text()
    wait_until(lambda: site.rows("select count(*) from pgbroker.bindings where exchange = 'celeryev'") == [(0,)])


def test_the_screen_of_celery_events_shows_a_task_and_quits(site: Site) -> None:
    site.worker("prefork", 1, "-E")
    parent, child = pty.openpty()
    screen = celery(site, "events", stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    shown = bytearray()

    def read() -> None:
        try:
            while text := os.read(parent, 4096):
                shown.extend(text)
        except OSError:
            pass  # it has ended

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(lambda: site.rows("select count(*) from pgbroker.bindings where exchange = 'celeryev'")[0][0], 20)
        site.app.tasks["app.add"].delay(1, 1).get(timeout=10)
        wait_until(lambda: b"app.add" in shown, 20, lambda: bytes(shown[-2000:]))
        screen.send_signal(signal.SIGINT)
        assert screen.wait(15) == 0, bytes(shown[-3000:])
    finally:
        screen.kill()
        screen.wait()
        reader.join(5)
        os.close(parent)


def test_a_camera_takes_pictures(site: Site) -> None:
    (site.folder / "cameras.py").write_text(
        "from celery.events.snapshot import Polaroid\n"
        "class Camera(Polaroid):\n"
        "    def on_shutter(self, state):\n"
        "        print('picture', state.event_count, sorted(t.state for t in state.tasks.values()), flush=True)\n"
    )
    site.worker("prefork", 1, "-E")
    output = site.folder / "pictures"
    with output.open("wb") as sink:
        environment = {**site.environment(), "PYTHONPATH": str(site.folder)}
        command = [sys.executable, "-m", "celery", "-A", "app", "events", "-c", "cameras.Camera", "-F", "0.3"]
        camera = subprocess.Popen(command, cwd=HERE, env=environment, stdout=sink, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: re.search(r"picture [1-9]", output.read_text()), 20, output.read_text)
        site.app.tasks["app.add"].delay(1, 1).get(timeout=10)
        wait_until(lambda: "['SUCCESS']" in output.read_text(), what=output.read_text)
        camera.send_signal(signal.SIGINT)
        camera.wait(15)
    finally:
        camera.kill()
        camera.wait()
    # a listener that ends in good order leaves nothing, though it closes no connection
    wait_until(lambda: site.rows("select count(*) from pgbroker.bindings where exchange = 'celeryev'") == [(0,)], 3)


def test_a_task_sends_events_of_its_own(site: Site) -> None:
    """With the pool solo it runs in the thread of the event loop, which must not hold them back."""
    site.worker("solo", 1, "-E")
    with receiver(site) as heard:
        task = site.app.tasks["app.tell"].delay("halfway", 2).id
        since = time.monotonic()
        wait_until(lambda: any(e["type"] == "task-halfway" for e in list(heard)), what=lambda: heard)
        assert time.monotonic() - since < 2
        wait_until(lambda: "task-succeeded" in of_task(heard, task), what=lambda: heard)
