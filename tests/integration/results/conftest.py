"""What the tests of the result backend share: applications, and a look at the database and at what is sent there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from pgbroker.postgres.connection import Session

MakeApp = Callable[..., Celery]
Run = Callable[..., list[tuple[Any, ...]]]


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
