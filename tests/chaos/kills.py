"""Kills workers under load, again and again, and lets a healthy one clear up at the end.

Two workers run at any time. In each round one of them loses its main process or some of its children to SIGKILL at a
random moment. A dead worker is replaced at once, sometimes under its old node name, so that many kills hit a worker
that is still starting; nobody waits for the queue to drain in between.
"""

from __future__ import annotations

import dataclasses
import random
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import diary
from chaos_app import make_app
from load import Load, Published
from victims import Kill, Victim, environment

#: A killed worker is noticed after two to three seconds.
LEASE = {"lease_seconds": 2, "reap_interval": 0.5}

#: Tasks take 50 ms at most, and orphans are taken back after three seconds: what is held longer than this is stuck.
STUCK_SECONDS = 15

#: For what is left when the killing is over; a task that was lost several times waits long for its next attempt.
DRAIN_SECONDS = 180

#: Celery's last words, see ``celery.worker.loops.asynloop``.
GAVE_UP = "Could not start worker processes"

#: What dead workers left in the tables beside their jobs, and nobody has swept though its time is over.
LEFTOVERS = """
    with overdue as (select clock_timestamp() - interval '5 s' as at)
    select 'consumer' as what, worker as whose from pgbroker.consumers, overdue where lives_until < at
    union all select 'sleeper', channel from pgbroker.sleepers, overdue where until < at
    union all select 'transient queue', name from pgbroker.transient_queues, overdue where lives_until < at
    union all select 'binding', queue from pgbroker.bindings where pgbroker.queue_kind(queue) is null
"""


@dataclasses.dataclass(frozen=True)
class Mode:
    """How tasks are acknowledged in a run.

    Attributes:
        name: For the figures.
        tasks: Names of the tasks that are published.
        options: Transport options beside those of the lease.
    """

    name: str
    tasks: list[str]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_late(self) -> bool:
        """Whether tasks are acknowledged when they end."""
        return "chaos.early" not in self.tasks

    @property
    def is_strict(self) -> bool:
        """Whether a start is committed before the task begins."""
        return bool(self.options.get("strict_start"))


EARLY = Mode("early", ["chaos.early"])
STRICT = Mode("early, strict_start", ["chaos.early"], {"strict_start": True})
LATE = Mode("late", ["chaos.late", "chaos.late", "chaos.late_once"])


@dataclasses.dataclass
class Story:
    """All that is known about a run when it is over.

    Attributes:
        gave_up: Pids of workers that Celery ended, because a pool process was gone before the worker's loop began.
        troubles: What went wrong on the way, apart from what became of tasks.
    """

    mode: Mode
    kills: list[Kill]
    published: list[Published]
    duplicates: int
    lines: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    events: list[dict[str, Any]]
    results: dict[str, str]
    gave_up: list[int]
    troubles: list[str]


class Killing:
    """One run.

    Args:
        mode: How tasks are acknowledged.
        database: An empty database.
        folder: For logs and the diary.
        rounds: How many kills.
        seed: Of the moments, the victims and the tasks.
    """

    def __init__(self, mode: Mode, database: Any, folder: Path, rounds: int, seed: int) -> None:
        self.mode, self.database, self.folder, self.rounds = mode, database, folder, rounds
        self.diary = folder / "diary"
        self.diary.touch()
        self.rng = random.Random(seed)
        options = {**LEASE, **mode.options}
        self.app = make_app(database.url, options)
        self.environment = environment(database.url, self.diary, options)
        self.load = Load(self.app, database, mode.tasks, random.Random(seed + 1))
        self.kills: list[Kill] = []
        self.gave_up: list[int] = []
        self.troubles: list[str] = []
        self.past: list[Victim] = []

    def run(self) -> Story:
        """Do it all."""
        self.load.publish(None)  # makes the schema
        workers = [self._start(None, pool="prefork"), self._start(None)]
        try:
            self.load.start()
            self._wait_for_the_first_end()
            for _ in range(self.rounds):
                if self.load.over.wait(self._pause()):
                    break
                self._look_for_trouble(workers)
                self._strike(workers)
            self._stop_load()
            for worker in workers:  # and at last both at once, so that only a newcomer can take back what they held
                self._note(worker.kill_main())
            workers.append(self._start(None, pool="prefork"))
            self._drain()
            self.troubles += [f"dedupe key {key!r} is still held" for key in self.load.try_keys()]
            self._drain()
            self.troubles += [f"left behind: {row}" for row in self._rows(LEFTOVERS)]
            return self._story()
        finally:
            for worker in (*workers, *self.past):
                worker.clear_away()
            self.app.close()

    def _wait_for_the_first_end(self) -> None:
        until = time.monotonic() + 60
        while not any(line["event"] == "end" for line in diary.read(self.diary)):
            if time.monotonic() > until:
                raise TimeoutError("no task has ended within a minute of the start of two workers")
            time.sleep(0.05)

    def _pause(self) -> float:
        """A random moment: often before a new worker has started, mostly in full flow."""
        low, high = self.rng.choice(((0.0, 0.3), (0.3, 1.5), (0.3, 1.5), (0.3, 1.5), (1.5, 2.5)))
        return self.rng.uniform(low, high)

    def _start(self, old: Victim | None, pool: str | None = None) -> Victim:
        pool = pool or self.rng.choice(("prefork",) * 7 + ("threads", "solo", "gevent"))
        is_namesake = old is not None and self.rng.random() < 0.5
        name = old.name if old is not None and is_namesake else f"w{len(self.past)}-{self.rng.getrandbits(16)}"
        concurrency = 1 if pool == "solo" else self.rng.randint(2, 4)
        return Victim(self.folder, self.environment, pool, concurrency, name, is_namesake=is_namesake)

    def _strike(self, workers: list[Victim]) -> None:
        """One round."""
        place = self.rng.randrange(len(workers))
        worker = workers[place]
        children = worker.children() if self.rng.random() < 0.5 else []
        if children:
            count = 1 if self.rng.random() < 0.6 else self.rng.randint(1, len(children))
            self._note(worker.kill_children(self.rng.sample(children, count)))
        else:
            self._note(worker.kill_main())
            self.past.append(worker)
            workers[place] = self._start(worker)

    def _note(self, kill: Kill) -> None:
        self.kills.append(kill)
        diary.write(self.diary, "kill", kill=dataclasses.asdict(kill))

    def _look_for_trouble(self, workers: list[Victim]) -> None:
        for place, worker in enumerate(workers):
            if (status := worker.process.poll()) is not None:
                if any(kill.main == worker.pid for kill in self.kills) and GAVE_UP in worker.said():
                    self.gave_up.append(worker.pid)
                else:
                    self.troubles.append(f"worker {worker.name} ({worker.pool}) ended by itself with {status}")
                self.past.append(worker)
                workers[place] = self._start(worker)
        stuck = self._rows(
            "select job_id, task_id, worker, ack_mode::text, clock_timestamp() - claimed_at as held_for,"
            " lease_until - clock_timestamp() as leased_for from pgbroker.jobs_live"
            f" where status = 'RUNNING' and claimed_at < clock_timestamp() - interval '{STUCK_SECONDS} s'"
        )
        self.troubles += [f"held for too long: {row}" for row in stuck]

    def _stop_load(self) -> None:
        self.load.over.set()
        self.load.join(30)
        if self.load.failure is not None:
            self.troubles.append(f"a publish failed: {self.load.failure!r}")

    def _drain(self) -> None:
        """Wait until nothing lives, and Celery has been told of every end."""
        until = time.monotonic() + DRAIN_SECONDS
        sql = "select job_id from pgbroker.jobs_live union all select job_id from pgbroker.outcome_outbox"
        while self._rows(sql):
            if time.monotonic() > until:
                left = self._rows("select *, null as body from pgbroker.jobs_live limit 20")
                outbox = self._rows("select job_id, outcome, deliveries from pgbroker.outcome_outbox limit 20")
                self.troubles.append(f"not drained within {DRAIN_SECONDS} s: {left} {outbox}")
                return
            time.sleep(0.1)

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def _story(self) -> Story:
        published = self.load.published
        rows = self._rows(
            "select job_id, task_id, status::text, attempts, max_attempts, worker, last_error, result_state,"
            " extract(epoch from finished_at)::float8 as at from pgbroker.job_log"
        )
        events = self._rows(
            "select task_id, kind, worker, detail, extract(epoch from happened_at)::float8 as at"
            " from pgbroker.job_events"
        )
        results: dict[str, str] = {one.task_id: self.app.AsyncResult(one.task_id).state for one in published}
        return Story(
            mode=self.mode,
            kills=self.kills,
            published=published,
            duplicates=self.load.duplicates,
            lines=list(diary.read(self.diary)),
            rows=rows,
            events=events,
            results=results,
            gave_up=self.gave_up,
            troubles=self.troubles,
        )
