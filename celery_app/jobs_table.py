"""Reads the jobs table with SQL, as any program could: ``pgbroker.job_log`` shows what ran and what became of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, column, create_engine, func, select, table
from sqlalchemy.pool import NullPool

from pgbroker.options import Options
from pgbroker.postgres import embedded


class JobsTable:
    """The jobs that were sent through a broker URL since a moment."""

    def __init__(self, url: str) -> None:
        options = Options.from_url(url)
        parameters: dict[str, Any] = dict(options.libpq)
        if options.embedded_dir is not None:
            parameters |= embedded.ensure_running(options.embedded_dir)
        self._engine: Engine = create_engine("postgresql+psycopg2://", connect_args=parameters, poolclass=NullPool)
        names = (
            *("job_id", "task_name", "status", "priority", "attempts", "dedupe_key"),
            *("enqueued_at", "finished_at", "last_error"),
        )
        self._log = table("job_log", *(column(name) for name in names), schema=options.schema)
        with self._engine.connect() as connection:
            self._since: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()

    def wait_until_settled(self, timeout_seconds: float) -> bool:
        """Wait until no job is running: a job is settled a moment after its result is there."""
        deadline = time.monotonic() + timeout_seconds
        running = select(func.count()).select_from(self._log).where(self._recent(), self._log.c.status == "RUNNING")
        while True:
            with self._engine.connect() as connection:
                if connection.execute(running).scalar_one() == 0:
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)

    def counts(self) -> Sequence[RowMapping]:
        """Return status, task_name and how many jobs (``jobs``), for each pair of the two."""
        log = self._log
        query = (
            select(log.c.status, log.c.task_name, func.count().label("jobs"))
            .where(self._recent())
            .group_by(log.c.status, log.c.task_name)
            .order_by(log.c.status, log.c.task_name)
        )
        return self._rows(query)

    def latest(self, limit: int) -> Sequence[RowMapping]:
        """Return the newest jobs, the newest first."""
        return self._rows(select(self._log).where(self._recent()).order_by(self._log.c.job_id.desc()).limit(limit))

    def _recent(self) -> Any:
        return self._log.c.enqueued_at >= self._since

    def _rows(self, query: Any) -> Sequence[RowMapping]:
        connection: Connection
        with self._engine.connect() as connection:
            return connection.execute(query).mappings().all()
