"""Keeps workers busy, and remembers every publish that returned."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from contextlib import closing
from typing import Any

from celery import Celery

#: Keys that are used again and again, so that one which is left behind is missed.
SHARED_KEYS = 20

#: While the queue shall never run dry: publish so many when fewer than half as many wait.
BURST = 80


@dataclasses.dataclass(frozen=True)
class Published:
    """A publish that returned.

    Attributes:
        task_id: Its task.
        task: Name of the task.
        key: Its dedupe key, if it has one.
        at: Seconds since the epoch, just after it returned.
    """

    task_id: str
    task: str
    key: str | None
    at: float


class Load(threading.Thread):
    """Publishes by turns in bursts, so that no worker is idle, and one by one, so that all are.

    Args:
        app: The application.
        database: Its database.
        tasks: Names of the tasks, one of which is taken at random; twice in the list, twice as often.
        rng: Where chance comes from.
    """

    def __init__(self, app: Celery, database: Any, tasks: list[str], rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.app, self.database, self.tasks, self.rng = app, database, tasks, rng
        self.published: list[Published] = []
        self.duplicates = 0
        #: Set when a publish failed; nobody hurts the server, so none may.
        self.failure: BaseException | None = None
        self.over = threading.Event()

    def run(self) -> None:
        try:
            with closing(self.database.connect()) as connection, connection.cursor() as cursor:
                self._publish_until_over(cursor)
        except BaseException as exc:
            self.failure = exc
            self.over.set()

    def _publish_until_over(self, cursor: Any) -> None:
        turns_at, is_bursting = 0.0, False
        while not self.over.wait(self.rng.uniform(0.0, 0.05)):
            if time.monotonic() > turns_at:
                is_bursting = not is_bursting
                turns_at = time.monotonic() + self.rng.uniform(*((2, 5) if is_bursting else (0.5, 1.5)))
            count = 1
            if is_bursting:
                cursor.execute("select count(*) from pgbroker.jobs_live where status = 'PENDING'")
                count = BURST if cursor.fetchone()[0] < BURST / 2 else 0
            for _ in range(count):
                self.publish(self._key())

    def _key(self) -> str | None:
        die = self.rng.random()
        if die < 0.1:
            return f"shared {self.rng.randrange(SHARED_KEYS)}"
        return f"own {self.rng.getrandbits(64):x}" if die < 0.3 else None

    def publish(self, key: str | None) -> None:
        """Publish one task of random length."""
        name = self.rng.choice(self.tasks)
        task: Any = self.app.tasks[name]
        seconds = self.rng.choice((0.0, self.rng.uniform(0, 0.05), self.rng.uniform(0, 0.05)))
        result = task.apply_async((seconds,), dedupe_key=key)
        if result.duplicate:
            self.duplicates += 1
        else:
            self.published.append(Published(result.id, name, key, time.time()))

    def try_keys(self) -> list[str]:
        """Publish one task for each shared key. Returns those that somebody still holds, though all is done."""
        held = []
        for number in range(SHARED_KEYS):
            before = self.duplicates
            self.publish(f"shared {number}")
            if self.duplicates > before:
                held.append(f"shared {number}")
        return held
