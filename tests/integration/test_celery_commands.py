"""Celery's own commands for brokers: ``amqp``, ``list bindings``, ``purge``, ``upgrade settings``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

APP = """
from celery import Celery
from kombu import Exchange, Queue

app = Celery("shop", broker={url!r})
app.conf.task_queues = [
    Queue("orders", Exchange("shop", "topic"), routing_key="order.#"),
    Queue("mail", Exchange("shop", "topic"), routing_key="mail.*"),
]
app.conf.task_default_queue = "orders"
app.conf.task_default_routing_key = "order.any"


@app.task
def ship(number):
    return number
"""

Run = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, database: Any) -> Path:
    """An application in a folder."""
    (tmp_path / "shop.py").write_text(APP.format(url=database.url))
    return tmp_path


@pytest.fixture
def celery(folder: Path) -> Run:
    """Run a command of Celery's on the application; returns what it prints, without colours."""

    def celery(*words: str, lines: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "shop", *words],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name != "NO_COLOR"},  # Celery 5.7 fails with it
            input=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout
        return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)

    return celery


@pytest.fixture
def publish(folder: Path, database: Any) -> Callable[..., None]:
    """Send tasks from a process of its own."""

    def publish(count: int, **options: Any) -> None:
        code = f"import shop; [shop.ship.apply_async((n,), **{options!r}) for n in range({count})]"
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=60)

    return publish


def test_the_shell_of_amqp_declares_publishes_gets_and_acknowledges(celery: Run) -> None:
    commands = [
        "exchange.declare logs topic",
        "exchange.declare logs direct",
        "queue.declare errors",
        "queue.bind errors logs *.error",
        "basic.publish 'first message' logs db.error",
        "basic.publish second logs db.error",
        "basic.publish third logs db.info",
        "queue.declare errors yes",
        "basic.get errors",
        "basic.ack 1",
        "basic.get errors yes",
        "basic.get errors",
        "queue.purge errors",
        "basic.publish straight '' errors",
        "queue.delete errors no yes",
        "queue.delete errors",
        "queue.declare errors yes",
        "exchange.delete logs yes",
    ]
    said = celery("amqp", "repl", lines="\n".join(commands) + "\n")
    assert "-> connected." in said
    assert "queue:errors messages:2 consumers:0" in said
    assert re.search(r"'body': b'first message'.*'delivery_tag': 1,", said, re.DOTALL)
    assert "'routing_key': 'db.error'" in said
    assert "b'second'" in said
    assert "b'third'" not in said
    assert said.count("No messages in queue") == 1
    assert "0 messages deleted." in said
    assert "1 messages deleted." in said
    assert re.findall(r"^ERROR: '?(\w+).*?(topic exchange|messages wait|named '\w+')", said, re.MULTILINE) == [
        ("logs", "topic exchange"),
        ("errors", "messages wait"),
        ("no", "named 'errors'"),
    ]
    assert "Traceback" not in said


def test_one_command_of_amqp_at_a_time(celery: Run, database: Any) -> None:
    assert "OK" in celery("amqp", "queue.declare", "one")
    celery("amqp", "basic.publish", "text", "", "one")
    assert "b'text'" in celery("amqp", "basic.get", "one", "yes")
    assert "messages:0" in celery("amqp", "queue.declare", "one", "yes")
    celery("amqp", "queue.delete", "one")
    with closing(database.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("select count(*) from pgbroker.queues where name = 'one'")
        assert cursor.fetchone() == (0,)


def test_lists_bindings(celery: Run) -> None:
    said = [line.split() for line in celery("list", "bindings").splitlines()]
    assert said[0] == ["Queue", "Exchange", "Routing", "Key"]
    assert ["orders", "shop", "order.#"] in said
    assert ["mail", "shop", "mail.*"] in said


def test_purges(celery: Run, publish: Any, database: Any) -> None:
    publish(3)
    publish(2, routing_key="mail.letter", queue="mail")
    publish(1, countdown=3600)
    assert "Purged 4 messages from 1 known task queue" in celery("purge", "-f", "-Q", "orders")
    assert "Purged 2 messages from 2 known task queues" in celery("purge", "-f")
    assert "No messages purged" in celery("purge", "-f")
    assert "No messages purged" in celery("purge", "-f", "-Q", "unknown")
    with closing(database.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("select status::text, count(*) from pgbroker.job_log group by 1")
        assert cursor.fetchall() == [("CANCELLED", 6)]


def test_upgrades_settings(celery: Run, folder: Path, database: Any) -> None:
    """The old names of a settings file of Celery 3 are replaced; ours among them need none."""
    settings = folder / "oldconfig.py"
    settings.write_text(
        f"BROKER_URL = {database.url!r}\nCELERY_RESULT_BACKEND = {database.url!r}\n"
        "CELERY_TASK_SERIALIZER = 'json'\nCELERYD_CONCURRENCY = 2\n"
        "BROKER_TRANSPORT_OPTIONS = {'lease_seconds': 30}\n"
    )
    assert "Changes to your setting have been made" in celery("upgrade", "settings", "oldconfig.py")
    text = settings.read_text()
    assert re.findall(r"^(\w+) =", text, re.MULTILINE) == [
        "broker_url",
        "result_backend",
        "task_serializer",
        "worker_concurrency",
        "broker_transport_options",
    ]
    assert "Does not seem to require any changes" in celery("upgrade", "settings", "oldconfig.py")
    code = (
        "from celery import Celery; app = Celery(); app.config_from_object('oldconfig');"
        "print(app.connection_for_write().transport.options.lease_seconds, type(app.backend).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.split() == ["30.0", "PgBackend"]


# -- routing, as an application sets it up -----------------------------------------------------------


@pytest.fixture
def app(database: Any) -> Any:
    """An application in this process."""
    app = Celery("routing", broker=database.url, set_as_current=False)
    yield app
    app.close()


def waiting(database: Any) -> dict[str, list[str]]:
    """Names of the waiting tasks by queue."""
    with closing(database.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("select queue, json_agg(task_name order by job_id)::text from pgbroker.jobs group by 1")
        return {queue: json.loads(names) for queue, names in cursor.fetchall()}


def test_routes_tasks_to_queues_that_it_makes(app: Celery, database: Any) -> None:
    app.conf.task_routes = {"mail.*": {"queue": "mail"}, "feed.*": "feeds"}
    for name in ("mail.send", "feed.read", "else.where"):
        app.send_task(name)
    assert waiting(database) == {"mail": ["mail.send"], "feeds": ["feed.read"], "celery": ["else.where"]}


def test_routes_tasks_through_a_topic_exchange(app: Celery, database: Any) -> None:
    tasks = Exchange("tasks", "topic")
    app.conf.task_queues = [Queue("all", tasks, routing_key="#"), Queue("video", tasks, routing_key="video.#")]
    app.conf.task_default_exchange, app.conf.task_default_exchange_type = "tasks", "topic"
    app.conf.task_default_queue, app.conf.task_default_routing_key = "all", "other"
    app.conf.task_routes = {"video.*": {"exchange": "tasks", "routing_key": "video.compress"}}
    # Celery declares the queue that a task is sent to; here an exchange feeds both, so somebody has to
    with app.connection_for_write() as connection:
        app.amqp.TaskConsumer(connection).declare()
    app.send_task("video.shrink")
    app.send_task("else.where")
    assert waiting(database) == {"all": ["video.shrink", "else.where"], "video": ["video.shrink"]}


def test_makes_no_queue_where_that_is_forbidden(app: Celery, database: Any) -> None:
    app.conf.task_create_missing_queues = False
    app.conf.task_queues = [Queue("known")]
    app.send_task("some.task", queue="known")
    with pytest.raises(Exception, match="unknown"):
        app.send_task("some.task", queue="unknown")
    assert waiting(database) == {"known": ["some.task"]}
