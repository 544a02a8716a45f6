"""A site whose applications have the tasks of :mod:`ends_tasks`, with results in Postgres or in Redis."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chord
from celery.result import AsyncResult
from ends_tasks import register
from worker_site import Site, Worker, wait_until

REDIS = "redis://127.0.0.1:6379/6"
BACKENDS = ("pgbroker", "redis")

#: A lost worker is noticed after two to three seconds.
LEASE = {"lease_seconds": 2, "reap_interval": 0.5}


def redis_answers() -> bool:
    """Whether there is a Redis for the tests."""
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(REDIS, socket_connect_timeout=1) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


class Ends:
    """What the tests of ends have in common."""

    def __init__(self, site: Site, backend: str = "pgbroker") -> None:
        if backend == "redis" and not redis_answers():
            pytest.skip("no Redis at 127.0.0.1:6379")
        self.site = site
        self.conf: dict[str, Any] = {"result_backend": REDIS} if backend == "redis" else {}
        self.app = register(site.make_app(**self.conf))
        self.tasks = self.app.tasks

    def worker(self, pool: str = "solo", concurrency: int = 1, *arguments: str, **conf: Any) -> Worker:
        return self.site.worker(pool, concurrency, *arguments, **{"imports": ["ends_tasks"], **self.conf, **conf})

    def result(self, task_id: str) -> AsyncResult[Any]:
        return self.app.AsyncResult(task_id)

    def with_errback(self, name: str, *args: Any) -> Any:
        return self.tasks[name].si(*args).on_error(self.tasks["ends.on_error"].s())

    def chord_of(self, *header: Any) -> Any:
        """A chord over these and one task that succeeds; its body has an errback."""
        return chord([*header, self.tasks["ends.number"].si(1)], self.with_body())

    def with_body(self) -> Any:
        return self.tasks["ends.total"].s().on_error(self.tasks["ends.on_error"].s())

    def wait_state(self, result: AsyncResult[Any], state: str, seconds: float = 10) -> None:
        wait_until(lambda: result.state == state, seconds, lambda: f"{result.state}: {self.site.describe(result.id)}")

    def errors(self, task_id: str) -> list[str]:
        """What errbacks were told of a task."""
        return [event["error"] for event in self.site.record.events("errback", task_id=task_id)]

    def wait_error(self, task_id: str, seconds: float = 10) -> str:
        wait_until(lambda: self.errors(task_id), seconds, lambda: self.site.describe(task_id))
        (error,) = self.errors(task_id)
        return error

    def outbox(self) -> list[tuple[Any, ...]]:
        return self.site.rows("select outcome, task_id from pgbroker.outcome_outbox order by outcome_id")

    def keys(self) -> list[str]:
        """Dedupe keys that are held."""
        return [
            row[0] for row in self.site.rows("select dedupe_key from pgbroker.jobs_live where dedupe_key is not null")
        ]

    def close(self) -> None:
        backend: Any = self.app.backend
        if hasattr(backend, "connparams"):
            backend.result_consumer.stop()
            backend.result_consumer._pubsub = None  # results that go away later would connect again
            backend.client.connection_pool.disconnect()
        self.app.close()
