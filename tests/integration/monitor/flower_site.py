"""A real worker and a real Flower, as processes of their own, on a broker whose URL has a password in it."""

from __future__ import annotations

import base64
import html.parser
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pytest
from celery import Celery

from pgbroker.postgres import pool
from pgbroker.transport.process import all_processes

if TYPE_CHECKING:
    from ...conftest import Database

#: Goes into the URL where the server asks for no password; percent-encoded there.
SECRET = "hush/hush"

SHOP = """
import json, os, time
from celery import Celery

app = Celery("shop", broker=os.environ["SHOP_URL"], backend=os.environ["SHOP_URL"])
app.conf.update(task_track_started=True, result_expires=600, **json.loads(os.environ["SHOP_CONF"]))

@app.task
def add(x, y):
    return x + y

@app.task
def ship(order, seconds=60):
    time.sleep(seconds)
    return f"shipped {order}"

@app.task(max_retries=1)
def charge(order):
    raise ValueError(f"no card on file for {order}")
"""


class Answer(NamedTuple):
    """What Flower said."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def wait_until(condition: Callable[[], object], seconds: float = 20, what: Callable[[], object] | str = "") -> None:
    """Wait for a condition; fail with ``what`` if it has not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s: {what() if callable(what) else what or condition}")
        time.sleep(0.05)


class Flower:
    """One running Flower."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int, prefix: str = "") -> None:
        self.process, self.log, self.port, self.prefix = process, log, port, prefix
        #: Whose requests these are, as ``NAME:PASSWORD``, unless said otherwise.
        self.user = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def output(self) -> str:
        """Its log, without the pages that it did not have."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if " 404 GET " not in line)

    def ask(
        self, path: str, method: str = "GET", *, user: str = "", data: dict[str, Any] | bytes | None = None
    ) -> Answer:
        """Send a request. A dict goes as JSON; ``user`` is ``NAME:PASSWORD``."""
        body = json.dumps(data).encode() if isinstance(data, dict) else data
        if method == "POST" and body is None:
            body = b""
        request = urllib.request.Request(self.url + path, method=method, data=body)
        if user or self.user:
            word = base64.b64encode((user or self.user).encode()).decode()
            request.add_header("Authorization", f"Basic {word}")
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return Answer(reply.status, reply.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, refused.read().decode())

    def post(self, path: str, data: dict[str, Any] | None = None, **form: object) -> Answer:
        """POST JSON, or a form."""
        return self.ask(path, "POST", data=urllib.parse.urlencode(form).encode() if form else data)

    def lengths(self) -> dict[str, dict[str, Any]]:
        """What ``/api/queues/length`` says, by queue."""
        answer = self.ask("/api/queues/length")
        assert answer.status == 200, answer
        return {row["name"]: row for row in answer.json["active_queues"]}

    def wait_ready(self, seconds: float = 40) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, self.output()
            try:
                return self.ask("/healthcheck").text == "OK"
            except urllib.error.URLError:
                return False

        wait_until(answers, seconds, self.output)

    def wait_for_worker(self, name: str, seconds: float = 30) -> None:
        """Wait until Flower has had an answer from a worker about everything that its page shows."""

        def is_known() -> bool:
            found = self.ask(f"/api/workers?refresh=1&workername={name}")
            return found.status == 200 and {"stats", "conf", "active_queues"} <= found.json[name].keys()

        wait_until(is_known, seconds, self.output)

    def wait_for_events(self, worker: str, seconds: float = 30) -> None:
        """Wait until Flower hears a worker; what a task did before is not told again."""
        wait_until(lambda: self.ask("/api/workers?status=1").json.get(worker), seconds, self.output)

    def wait_for_task(self, task_id: str, state: str, seconds: float = 30) -> dict[str, Any]:
        """Wait until Flower shows a task in a state; what it knows of it."""

        def known() -> dict[str, Any]:
            answer = self.ask(f"/api/task/info/{task_id}")
            return answer.json if answer.status == 200 else {}

        wait_until(lambda: known().get("state") == state, seconds, lambda: f"{known()} {self.output()}")
        return known()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


class FlowerSite:
    """A database, an application on it, and what runs there.

    Args:
        database: The database.
        folder: For the application and logs.
        has_plain_url: The processes find the database by libpq's variables, so that pages show a short URL.
    """

    def __init__(self, database: Database, folder: Path, *, has_plain_url: bool = False) -> None:
        self.database, self.folder = database, folder
        server = database.server
        self.has_secret = "password" not in server.dsn
        self.url = type(server)({"password": SECRET, **server.dsn}).url(database.name)
        (folder / "shop.py").write_text(SHOP)
        self.variables = {"SHOP_URL": self.url}
        if has_plain_url:
            place = {"PGHOST": "host", "PGPORT": "port", "PGDATABASE": "dbname"}
            self.variables = {name: database.dsn[word] for name, word in place.items() if word in database.dsn}
            user, password = database.dsn.get("user", ""), database.dsn.get("password", SECRET)
            self.variables["SHOP_URL"] = f"pgbroker://{quote(user, safe='')}:{quote(password, safe='')}@/"
        self.app = Celery("shop", broker=self.url, backend=self.url, set_as_current=False)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.logs: list[Path] = []

    def send(self, task: str, *args: object, **options: Any) -> str:
        """Publish a task; its id."""
        return str(self.app.send_task(f"shop.{task}", args, **options).id)

    def run(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        connection = self.database.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, args or None)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def worker(self, *words: str, name: str = "w1", **conf: Any) -> str:
        """Start a worker; the name under which Flower knows it."""
        full = f"{name}@shop"
        log = self._start(["-A", "shop", "worker", "-n", full, "-l", "info", *words], name, conf=conf)
        wait_until(lambda: "ready." in log.read_text(errors="replace"), 40, lambda: log.read_text(errors="replace"))
        return full

    def flower(
        self,
        *words: str,
        command: tuple[str, ...] = ("pgbroker", "flower"),
        environment: dict[str, str] | None = None,
        prefix: str = "",
        has_api: bool = True,
        wait: bool = True,
        **conf: Any,
    ) -> Flower:
        """Start ``celery -A shop pgbroker flower``.

        Args:
            words: Flower's options.
            command: The command.
            environment: Further variables.
            prefix: Where its pages lie, with a leading slash.
            has_api: Whether its API may be used without authentication.
            wait: Return when it answers.
            conf: Celery's configuration.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        variables = {"FLOWER_UNAUTHENTICATED_API": "true" if has_api else "false", **(environment or {})}
        if not any(word.startswith("--port") for word in words) and "FLOWER_PORT" not in variables:
            words = (f"--port={port}", *words)
        variables = {name: value.replace("PORT", str(port)) for name, value in variables.items()}
        words = ("--address=127.0.0.1", *(word.replace("PORT", str(port)) for word in words))
        log = self._start(["-A", "shop", *command, *words], f"flower{len(self.logs)}", variables, conf)
        flower = Flower(self.processes[-1], log, port, prefix)
        if wait:
            flower.wait_ready()
        return flower

    def _start(self, words: list[str], name: str, variables: dict[str, str] | None = None, conf: Any = None) -> Path:
        log = self.folder / f"{name}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOWER_")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", *words],
                cwd=self.folder,
                env={
                    **environment,
                    **self.variables,
                    "SHOP_CONF": json.dumps(conf or {}),
                    "PYTHONUNBUFFERED": "1",
                    **(variables or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        self.logs.append(log)
        return log

    def close(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(10)
        self.app.close()
        for shared in all_processes():
            shared.keeper.stop()
        pool.close_all()


class _Table(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def broker_table(page: str) -> list[dict[str, str]]:
    """The rows of the Broker page, by their heads."""
    found = re.search(r'<table id="queue-table".*?</table>', page, re.DOTALL)
    assert found is not None, page
    reader = _Table()
    reader.feed(found[0])
    heads, *rows = reader.rows
    return [dict(zip(heads, row, strict=True)) for row in rows if len(row) == len(heads)]
