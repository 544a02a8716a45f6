"""A site whose applications have the tasks of :mod:`state_tasks`, and all that can be seen of what became of a task."""

from __future__ import annotations

import dataclasses
import re
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from celery.utils import uuid
from state_tasks import MODES, register
from worker_site import Site, Worker, wait_until

#: A lost worker is noticed after two to three seconds.
LEASE = {"lease_seconds": 2, "reap_interval": 0.5}

#: For tests that take their time: two pools stand for all where slow tests are left out.
TWO_FIRST = ("prefork", "threads", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("solo", "gevent")))


LOOK = """
    select (select json_agg(json_build_array(status, attempts, result_state, dedupe_key is not null) order by job_id)
            from pgbroker.job_log where task_id = %(id)s),
        (select json_agg(kind order by event_id) from pgbroker.job_events where task_id = %(id)s),
        (select status::text from pgbroker.jobs_live where dedupe_key = %(key)s)
"""


class Row(NamedTuple):
    """One job of a task."""

    status: str
    attempts: int
    result_state: str | None
    has_key: bool = True


@dataclasses.dataclass(frozen=True)
class Seen:
    """What is to be seen of one task.

    Attributes:
        rows: Its jobs in ``job_log``, in the order in which they were published.
        result: The state that ``AsyncResult`` tells.
        events: Kinds of its rows in ``job_events``.
        key: Status of the job that holds its dedupe key; ``None``: the key is free.
    """

    rows: tuple[Row, ...]
    result: str
    events: tuple[str, ...] = ()
    key: str | None = None


def done(state: str = "SUCCESS", attempts: int = 1, **more: Any) -> Seen:
    """One job, ended well; the result has the same state unless told otherwise."""
    return Seen((Row("DONE", attempts, state),), **{"result": state, **more})


def dead(attempts: int = 1, events: tuple[str, ...] = ("buried",)) -> Seen:
    """One job, a dead letter."""
    return Seen((Row("DEAD", attempts, "FAILURE"),), "FAILURE", events)


def waiting(attempts: int, events: tuple[str, ...] = (), result: str = "PENDING") -> Seen:
    """One job that has come back, with its key."""
    return Seen((Row("PENDING", attempts, None),), result, events, "PENDING")


def cancelled(attempts: int = 0, events: tuple[str, ...] = ("revoked",)) -> Seen:
    """One job, ended as CANCELLED."""
    return Seen((Row("CANCELLED", attempts, "REVOKED"),), "REVOKED", events)


class States:
    """The tasks, on one pool."""

    def __init__(self, site: Site, pool: str, **options: Any) -> None:
        self.site, self.pool, self.queue = site, pool, f"states of {pool}"
        self.app = register(site.make_app(task_default_queue=self.queue, broker_transport_options=options))
        self._connection = site.database.connect()

    def worker(self, concurrency: int, *arguments: str, queues: str | None = None, **conf: Any) -> Worker:
        """Start a worker of the pool; a solo one has a concurrency of one."""
        conf = {"imports": ["state_tasks"], "task_default_queue": self.queue, **conf}
        concurrency = 1 if self.pool == "solo" else concurrency
        return self.site.worker(self.pool, concurrency, *arguments, queues=queues or self.queue, **conf)

    def publish(self, mode: str, name: str, *args: Any, **options: Any) -> str:
        """Call a task, with a dedupe key of its own."""
        task_id = uuid()
        task = self.app.tasks[f"state.{mode}.{name}"]
        task.apply_async(args, task_id=task_id, dedupe_key=key_of(task_id), **options)
        return task_id

    def publish_both(self, name: str, *args: Any, **options: Any) -> dict[str, str]:
        """Call a task in both acknowledgement modes."""
        return {mode: self.publish(mode, name, *args, **options) for mode in MODES}

    # -- what is to be seen -------------------------------------------------------------------------

    def seen(self, task_id: str) -> Seen:
        """What is to be seen of a task now."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(LOOK, {"id": task_id, "key": key_of(task_id)})
            ((rows, events, holder),) = cursor.fetchall()
        result = str(self.app.AsyncResult(task_id).state)
        return Seen(tuple(Row(*row) for row in rows or ()), result, tuple(events or ()), holder)

    def check(self, task_id: str, expected: Seen, error: str | None = None, seconds: float = 15) -> None:
        """Wait until exactly this is to be seen of a task, and match ``last_error``."""

        def difference() -> str:
            return f"expected {expected}\nseen     {self.seen(task_id)}\n{self.site.describe(task_id)}"

        wait_until(lambda: self.seen(task_id) == expected, seconds, difference)
        if error is not None:
            found = self.site.job(task_id)["last_error"]
            assert re.search(error, found or "", re.DOTALL), found

    def wait_started(self, *task_ids: str, seconds: float = 15) -> None:
        """Wait until the rows say that these tasks have begun."""
        sql = "select 1 from pgbroker.jobs_live where task_id = any (%s) and started_at is not null"
        wait_until(lambda: len(self.site.rows(sql, list(task_ids))) == len(task_ids), seconds, self.site.describe)

    def wait_status(self, status: str, *task_ids: str, seconds: float = 15) -> None:
        """Wait until all of these have this status."""
        ids = list(task_ids)
        wait_until(lambda: self.site.statuses(ids)[status] == len(ids), seconds, self.site.describe)

    def end_back_off(self, task_id: str) -> float:
        """Let a job that came back wait no longer. Returns for how many seconds it should have waited."""
        ((seconds,),) = self.site.rows(
            "select extract(epoch from j.run_after - max(e.happened_at))::float8"
            " from pgbroker.jobs_live j join pgbroker.job_events e using (job_id)"
            " where j.task_id = %s and j.status = 'PENDING' group by j.job_id",
            task_id,
        )
        self.site.rows(
            "update pgbroker.jobs_live set run_after = clock_timestamp() where task_id = %s and status = 'PENDING'",
            task_id,
        )
        return float(seconds)

    def runs(self, task_id: str) -> int:
        """How often a task began."""
        return self.site.record.count("start", task_id=task_id)

    def close(self) -> None:
        self._connection.close()
        self.app.close()


def key_of(task_id: str) -> str:
    """The dedupe key with which :meth:`States.publish` calls a task."""
    return f"key of {task_id}"
