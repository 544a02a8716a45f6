"""What the tests of the result backend share: applications, and a look at the database and at what is sent there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, states

from pgbroker.postgres import pool
from pgbroker.postgres.connection import Session

MakeApp = Callable[..., Celery]
Run = Callable[..., list[tuple[Any, ...]]]
WaitUntil = Callable[[Callable[[], object]], None]

#: Longer than any test waits: whoever is woken in time was not woken by a poll.
NO_POLL = {"poll_interval": 60}


class Calls:
    """An application and what it publishes into a queue of the test's own, with one dedupe key."""

    def __init__(self, app: Celery, key: str, run: Run) -> None:
        self.app, self.key, self.run = app, key, run

        @app.task(name="a.plain", shared=False)
        def plain(*args: Any) -> None: ...

        self.task = plain

    def call(self, **options: Any) -> Any:
        return self.task.apply_async(**{"queue": self.key, "dedupe_key": self.key, **options})

    def member(self) -> Any:
        return self.task.si().set(queue=self.key, dedupe_key=self.key)

    def finish(self, result: Any, value: Any = "done", state: str = states.SUCCESS) -> None:
        self.app.backend.store_result(result.id, value, state)

    def cancel(self, result: Any) -> None:
        sql = "select pgbroker.cancel(job_id, 'PURGED', 'purged') from pgbroker.jobs where task_id = %s"
        self.run(sql, result.id)

    def aliases(self) -> list[tuple[str, str]]:
        """Aliases that lead to jobs of this queue, the oldest first."""
        return self.run(
            "select a.task_id, a.leads_to from pgbroker.aliases a where exists (select from pgbroker.job_log j"
            " where j.task_id = a.leads_to and j.queue like %s) order by alias_id",
            self.key + "%",
        )

    def jobs(self) -> list[str]:
        rows = self.run("select task_id from pgbroker.jobs_live where queue = %s order by job_id", self.key)
        return [task_id for (task_id,) in rows]


@pytest.fixture
def make_app(module_database: Any) -> Iterator[MakeApp]:
    """Make Celery applications whose results lie in the module's database."""
    made = []

    def make(url: str | None = None, *, broker: str = "memory://", **conf: Any) -> Celery:
        app = Celery(broker=broker, backend=url or module_database.url, set_as_current=False)
        app.conf.update(conf)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()


@pytest.fixture
def run(module_database: Any) -> Iterator[Run]:
    with closing(module_database.connect()) as connection, connection.cursor() as cursor:

        def execute(sql: str, *args: Any) -> list[tuple[Any, ...]]:
            cursor.execute(sql, args or None)
            return cursor.fetchall() if cursor.description else []

        yield execute


@pytest.fixture
def task_id() -> str:
    return uuid4().hex


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that this process sends, as it is sent."""
    sent: list[str] = []
    send = Session.send

    def record(self: Session, sql: str, args: Any = ()) -> None:
        sent.append(sql)
        send(self, sql, args)

    monkeypatch.setattr(Session, "send", record)
    return sent


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    """Wait for a condition, ten seconds at most."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "the condition has not come true within 10 s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def url(module_database: Any) -> Iterator[str]:
    yield module_database.url
    pool.close_all()


@pytest.fixture
def calls_of(task_id: str, run: Run) -> Callable[[Celery], Calls]:
    """Give an application the task and the key of this test."""
    return lambda app: Calls(app, task_id, run)


@pytest.fixture
def plain(make_app: MakeApp, url: str, calls_of: Callable[[Celery], Calls]) -> Calls:
    """An application without our task class."""
    return calls_of(make_app(broker=url, result_backend_transport_options=NO_POLL))


@pytest.fixture
def ours(url: str, calls_of: Callable[[Celery], Calls]) -> Iterator[Calls]:
    """An application with our task class."""
    app = Celery("ours", broker=url, backend=url, task_cls="pgbroker:Task", set_as_current=False)
    app.conf.result_backend_transport_options = NO_POLL
    yield calls_of(app)
    app.close()


@pytest.fixture
def wait_for(run: Run, wait_until: WaitUntil) -> Iterator[Callable[..., Callable[[], Any]]]:
    """Begin to wait for a result in a thread, once it is registered; what comes back gives what ``get()`` gave."""
    threads = []

    def begin(result: Any, *ids: str) -> Callable[[], Any]:
        got: list[Any] = []

        def get() -> None:
            try:
                got.append(result.get(timeout=10))
            except Exception as exc:
                got.append(exc)

        thread = threading.Thread(target=get)
        threads.append(thread)
        thread.start()
        wanted = list(ids or [result.id])
        registered = "select count(distinct payload) from pgbroker.waiters where payload = any(%s)"
        wait_until(lambda: run(registered, wanted)[0][0] == len(wanted))
        return lambda: (thread.join(12), got[0])[1]

    yield begin
    for thread in threads:
        thread.join(12)
