"""An application with a table of its own, and what others see of that table and of its tasks."""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from typing import Any

from celery import Celery
from kinds_of_connection import Opened

_numbers = itertools.count(1)


class Shop:
    """The application: a table of its own, one task, and what can be seen of both from outside."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.number = next(_numbers)
        self.queue = f"shop-{self.number}"
        self.app = self.make_app()

    def make_app(self, database: Any = None, **conf: Any) -> Celery:
        """An application whose broker is a database."""
        url = (database or self.database).url
        app = Celery("shop", broker=url, backend=url, task_cls="pgbroker:Task", set_as_current=False)
        app.conf.update(task_default_queue=self.queue, broker_transport_options={"dedupe_wait_seconds": 1}, **conf)

        @app.task(name="pack", shared=False)
        def pack(*args: Any, **kwargs: Any) -> str:
            return "packed"

        return app

    @property
    def pack(self) -> Any:
        return self.app.tasks["pack"]

    def sql(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return cursor.fetchall() if cursor.description else []

    def jobs(self) -> list[str]:
        """Task ids of the jobs that others can see."""
        sql = "select task_id from pgbroker.jobs where queue = %s order by job_id"
        return [row[0] for row in self.sql(sql, self.queue)]

    def orders(self) -> list[int]:
        """The committed rows of the application's own table."""
        return [row[0] for row in self.sql(f"select n from public.{self.table} order by n")]

    @property
    def table(self) -> str:
        return f"orders_{self.number}"

    def wait_for_a_lock(self) -> None:
        """Wait until somebody in the database waits for somebody else's transaction."""
        sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = %s"
        deadline = time.monotonic() + 10
        while self.sql(sql, self.database.name) == [(0,)]:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def insert(self, opened: Opened, n: int) -> None:
        opened.execute(f"insert into public.{self.table} values ({n})")
