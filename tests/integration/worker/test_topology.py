"""Workers on queues that the application declares itself: broadcasts, dead letter exchanges, transient queues."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from worker_site import stop_sharing, wait_until

APP = '''
import os
import time

from celery import Celery
from celery.exceptions import Reject
from kombu import Exchange, Queue
from kombu.common import Broadcast

app = Celery("shop", broker={url!r}, backend={url!r})
app.conf.task_queues = [
    Broadcast("everywhere"),
    Queue("work", queue_arguments={{"x-dead-letter-exchange": "failed"}}),
    Queue("failed-work", Exchange("failed", "fanout")),
    Queue("short-lived", expires=60.0),
]
app.conf.task_default_queue = "work"
app.conf.task_create_missing_queues = False


def record(text):
    with open({record!r}, "a") as file:
        file.write(f"{{text}} {{os.getpid() if app.conf.worker_pool == 'solo' else os.getppid()}}\\n")


@app.task(shared=False)
def reload(what):
    record(f"reload:{{what}}")


@app.task(shared=False, acks_late=True)
def refuse():
    raise Reject("not today", requeue=False)


@app.task(shared=False, acks_late=True)
def refuse_once():
    """Put back once, if the queue knows how."""
    if not os.path.exists({record!r} + ".refused"):
        open({record!r} + ".refused", "w").close()
        record("refused")
        raise Reject("again", requeue=True)
    record("taken")


@app.task(shared=False)
def add(x, y):
    return x + y
'''


@pytest.fixture
def folder(tmp_path: Path, database: Any) -> Path:
    (tmp_path / "shop.py").write_text(APP.format(url=database.url, record=str(tmp_path / "record")))
    return tmp_path


@pytest.fixture
def shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The application, in this process."""
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("shop", None)
    import shop  # type: ignore[import-not-found]

    app: Celery = shop.app
    yield shop
    app.close()
    sys.modules.pop("shop", None)
    stop_sharing()


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start workers of the application."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, queues: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = folder / f"{name}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-c", "1", "-l", "info", "-Q", queues]
            process = subprocess.Popen(
                [*command, "-n", f"{name}@%h", *arguments], cwd=folder, stdout=output, stderr=subprocess.STDOUT
            )
        started.append(process)
        wait_until(lambda: " ready." in log.read_text(), 60, log.read_text)
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
    for process in started:
        process.wait(30)


@pytest.fixture
def recorded(folder: Path) -> Callable[[], list[list[str]]]:
    path = folder / "record"
    return lambda: [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_a_broadcast_task_runs_on_every_worker(shop: Any, start: Any, recorded: Any) -> None:
    workers = {start(name, "everywhere").pid for name in ("one", "two")}
    for what in ("prices", "stock"):
        shop.reload.apply_async((what,), queue="everywhere")
    wait_until(lambda: len(recorded()) == 4, 30, recorded)
    assert sorted(recorded()) == sorted([f"reload:{what}", str(pid)] for what in ("prices", "stock") for pid in workers)


def test_a_rejected_task_is_found_behind_the_dead_letter_exchange(shop: Any, start: Any, database: Any) -> None:
    start("one", "work,failed-work", "-X", "failed-work")
    with shop.app.connection_for_write() as connection:
        shop.app.amqp.TaskConsumer(connection).declare()
        sent = shop.refuse.delay()
        channel = connection.default_channel
        wait_until(lambda: channel.queue_declare("failed-work", passive=True).message_count == 1, 30)
        message = channel.basic_get("failed-work", no_ack=True)
    assert message.headers["id"] == sent.id
    assert [(d["queue"], d["reason"], d["count"]) for d in message.headers["x-death"]] == [("work", "rejected", 1)]
    with closing(database.connect()) as admin, admin.cursor() as cursor:
        cursor.execute(
            "select queue, status::text from pgbroker.job_log where task_id = %s order by job_id", (sent.id,)
        )
        assert cursor.fetchall() == [("work", "DEAD"), ("failed-work", "DONE")]


def test_tasks_run_from_a_transient_queue(shop: Any, start: Any, recorded: Any, database: Any) -> None:
    start("one", "short-lived")
    results = [shop.add.apply_async((number, 1), queue="short-lived") for number in range(20)]
    assert [result.get(timeout=30) for result in results] == list(range(1, 21))
    later = shop.add.apply_async((1, 1), queue="short-lived", countdown=1)
    shop.refuse_once.apply_async(queue="short-lived")
    assert later.get(timeout=30) == 2
    wait_until(lambda: [words[0] for words in recorded()] == ["refused", "taken"], 30, recorded)
    with closing(database.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("select (select count(*) from pgbroker.job_log), (select count(*) from pgbroker.mailbox)")
        assert cursor.fetchone() == (0, 0)
