"""The queue against a small model of it: any sequence of calls from several connections, no difference allowed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pgbroker import DuplicateJob, Job, JobQueue, compute_backoff

if TYPE_CHECKING:
    from conftest import Database

CONNECTIONS = 3
KEYS = ("a", "b")
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
#: Long enough for no run of this test to see its end.
FOR_EVER = 7 * 86400

WORKERS = st.sampled_from(["alice", "bob"])
ROUTES = st.integers(0, CONNECTIONS - 1)
INDEXES = st.integers(0, 99)


@dataclasses.dataclass
class Model:
    """What is expected of one job. ``place`` orders it within its priority; ``None``: it is due in the future."""

    job_id: int
    priority: int
    max_attempts: int
    key: str | None
    place: tuple[int, int] | None
    status: str = "PENDING"
    attempts: int = 0
    worker: str | None = None
    claim: int | None = None
    is_lease_over: bool = False
    is_expired: bool = False

    @property
    def holds_key(self) -> bool:
        return self.status == "RUNNING" or (self.status == "PENDING" and not self.is_expired)

    @property
    def is_ready(self) -> bool:
        return self.status == "PENDING" and self.place is not None and not self.is_expired

    def is_held_by(self, worker: str, claim: int | None) -> bool:
        return self.status == "RUNNING" and self.worker == worker and claim in (None, self.claim)

    def leave(self, status: str) -> None:
        self.status, self.worker, self.claim, self.is_lease_over = status, None, None, False


class JobQueueMachine(RuleBasedStateMachine):
    """Drives the queue and the model side by side."""

    def __init__(self, routes: list[JobQueue], sql: Any) -> None:
        super().__init__()
        self.routes, self.cursor = routes, sql
        self.models: dict[int, Model] = {}
        self.claims: list[int] = []
        self.clock = itertools.count()

    def run(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        self.cursor.execute(sql, args)
        return self.cursor.fetchall() if self.cursor.description else []

    def now(self) -> tuple[int, int]:
        """The place of a job that becomes due now: behind everything so far."""
        return (1, next(self.clock))

    def pick(self, index: int, status: str) -> Model:
        """Any job; of two times one in that status, if there is one."""
        models = list(self.models.values())
        wanted = [m for m in models if m.status == status]
        choice = wanted if index % 2 and wanted else models
        return choice[index // 2 % len(choice)]

    def has(self, status: str) -> bool:
        return any(m.status == status for m in self.models.values())

    def holder(self, key: str | None) -> Model | None:
        return next((m for m in self.models.values() if key is not None and m.key == key and m.holds_key), None)

    def drop_expired_holder(self, key: str | None) -> None:
        """An expired job that waits with this key is cancelled by whoever wants the key."""
        for model in self.models.values():
            if key is not None and model.key == key and model.status == "PENDING" and model.is_expired:
                model.leave("CANCELLED")

    def token(self, model: Model, choice: int) -> int | None:
        """A claim token to settle with: none, the right one, an old one of any job, or one that never was."""
        if choice == 0:
            return None
        if choice <= 5 and model.claim is not None:
            return model.claim
        return self.claims[choice % len(self.claims)] if self.claims and choice < 9 else 2**62

    @initialize()
    def start_empty(self) -> None:
        self.run("delete from pgbroker.jobs")

    @rule(
        route=ROUTES,
        priority=st.integers(0, 2),
        age=st.sampled_from([None, 0, 1, "future"]),
        key=st.sampled_from([None, *KEYS]),
        max_attempts=st.integers(1, 3),
    )
    def enqueue_one(self, route: int, priority: int, age: Any, key: str | None, max_attempts: int) -> None:
        self.enqueue(route, priority, age, key, max_attempts)

    def enqueue(self, route: int, priority: int, age: Any, key: str | None, max_attempts: int) -> None:
        run_after: Any = FOR_EVER if age == "future" else age
        place: tuple[int, int] | None = None
        if isinstance(age, int):
            run_after, place = LONG_AGO - dt.timedelta(seconds=age), (0, -age)
        elif age is None:
            place = self.now()
        job_id = self.routes[route].enqueue(
            "task", {}, priority=priority, run_after=run_after, dedupe_key=key, max_attempts=max_attempts
        )
        if self.holder(key):
            assert job_id is None
            return
        assert job_id is not None
        self.drop_expired_holder(key)
        self.models[job_id] = Model(job_id, priority, max_attempts, key, place)

    @rule(route=ROUTES, made=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=5))
    def fill(self, route: int, made: list[tuple[int, int]]) -> None:
        """A backlog, so that claims have to choose."""
        for priority, age in made:
            self.enqueue(route, priority, age, None, 3)

    @rule(route=ROUTES, worker=WORKERS, limit=st.integers(1, 3))
    def claim(self, route: int, worker: str, limit: int) -> None:
        found = self.routes[route].claim(worker, limit=limit, lease_seconds=FOR_EVER)
        jobs: list[Job] = found if isinstance(found, list) else [found] if found else []
        assert isinstance(found, list) == (limit > 1)
        ready = sorted((m for m in self.models.values() if m.is_ready), key=lambda m: (-m.priority, m.place, m.job_id))[
            :limit
        ]
        assert [job.job_id for job in jobs] == [model.job_id for model in ready]
        for job, model in zip(jobs, ready, strict=True):
            model.status, model.worker, model.claim = "RUNNING", worker, job.claim
            model.attempts += 1
            assert job.claim is not None
            assert job.claim not in self.claims
            self.claims.append(job.claim)

    @precondition(lambda self: self.has("RUNNING"))
    @rule(route=ROUTES, index=INDEXES, worker=WORKERS, choice=st.integers(0, 9))
    def complete(self, route: int, index: int, worker: str, choice: int) -> None:
        model = self.pick(index, "RUNNING")
        worker = (choice % 2 and model.worker) or worker
        token = self.token(model, choice)
        is_held = model.is_held_by(worker, token)
        assert self.routes[route].complete(model.job_id, worker, {"by": worker}, claim=token) is is_held
        if is_held:
            model.leave("DONE")

    @precondition(lambda self: self.has("RUNNING"))
    @rule(route=ROUTES, index=INDEXES, worker=WORKERS, choice=st.integers(0, 9), wait=st.sampled_from([0, FOR_EVER]))
    def fail(self, route: int, index: int, worker: str, choice: int, wait: int) -> None:
        model = self.pick(index, "RUNNING")
        worker = (choice % 2 and model.worker) or worker
        token = self.token(model, choice)
        status = self.routes[route].fail(model.job_id, worker, "failed", backoff_seconds=wait, claim=token)
        if not model.is_held_by(worker, token):
            assert status is None
        elif model.attempts >= model.max_attempts:
            assert status == "DEAD"
            model.leave("DEAD")
        else:
            assert status == "PENDING"
            model.leave("PENDING")
            model.place = None if wait else self.now()

    @precondition(lambda self: self.has("RUNNING"))
    @rule(route=ROUTES, worker=WORKERS)
    def renew(self, route: int, worker: str) -> None:
        held = [m for m in self.models.values() if m.status == "RUNNING" and m.worker == worker]
        assert self.routes[route].renew(worker, FOR_EVER) == len(held)
        for model in held:
            model.is_lease_over = False

    @precondition(lambda self: self.has("RUNNING"))
    @rule(worker=WORKERS, priority=st.integers(0, 2))
    def end_leases(self, worker: str, priority: int) -> None:
        """Time passes for what a worker holds: so many of its leases end."""
        for model in self.models.values():
            if model.worker == worker and model.priority <= priority:
                self.run(
                    "update pgbroker.jobs_live set lease_until = clock_timestamp() - interval '1 second'"
                    " where job_id = %s",
                    model.job_id,
                )
                model.is_lease_over = True

    @precondition(lambda self: any(m.is_lease_over for m in self.models.values()))
    @rule(route=ROUTES)
    def reap(self, route: int) -> None:
        lost = [m for m in self.models.values() if m.is_lease_over]
        assert sorted(self.routes[route].reap()) == [m.job_id for m in lost]
        assert self.routes[route].reap() == []
        for model in lost:
            is_dead = model.attempts >= model.max_attempts
            model.leave("DEAD" if is_dead else "PENDING")
            if not is_dead and model.attempts > 1:
                model.place = None
                wait = self.run(
                    "update pgbroker.jobs_live j set run_after = clock_timestamp() + interval '7 days'"
                    " from (select extract(epoch from run_after - clock_timestamp()) as wait"
                    " from pgbroker.jobs_live where job_id = %s) before where j.job_id = %s returning before.wait",
                    model.job_id,
                    model.job_id,
                )[0][0]
                backoff = compute_backoff(model.attempts - 1)
                assert backoff - 5 < wait <= backoff

    @rule(route=ROUTES, worker=WORKERS)
    def claim_and_lose(self, route: int, worker: str) -> None:
        self.claim(route, worker, 3)
        self.end_leases(worker, 9)
        self.reap(route)
        for model in self.models.values():
            if model.status == "PENDING" and model.place is None:
                self.make_due_now(model)

    @precondition(lambda self: self.has("DEAD"))
    @rule(route=ROUTES, index=INDEXES)
    def requeue(self, route: int, index: int) -> None:
        model = self.pick(index, "DEAD")
        job_id, holder = model.job_id, self.holder(model.key)
        if model.status != "DEAD":
            assert self.routes[route].requeue(job_id) is None
        elif holder:
            with pytest.raises(DuplicateJob) as caught:
                self.routes[route].requeue(job_id)
            assert caught.value.job_id == holder.job_id
        else:
            self.drop_expired_holder(model.key)
            assert self.routes[route].requeue(job_id) == job_id
            model.leave("PENDING")
            model.place, model.attempts, model.is_expired = self.now(), 0, False

    @precondition(lambda self: self.models)
    @rule(route=ROUTES, index=INDEXES)
    def cancel(self, route: int, index: int) -> None:
        model = self.pick(index, "PENDING")
        job_id, waits = model.job_id, model.status == "PENDING"
        assert self.routes[route].cancel(job_id) == (job_id if waits else None)
        if waits:
            model.leave("CANCELLED")

    @precondition(lambda self: self.has("PENDING"))
    @rule(index=INDEXES, is_expiry=st.booleans())
    def pass_time(self, index: int, is_expiry: bool) -> None:
        """A job that waits passes its expiry, or becomes due."""
        model = self.pick(index, "PENDING")
        if model.status != "PENDING":
            return
        if is_expiry:
            self.run(
                "update pgbroker.jobs_live set expires_at = clock_timestamp() - interval '1 second' where job_id = %s",
                model.job_id,
            )
            model.is_expired = True
        elif model.place is None:
            self.make_due_now(model)

    def make_due_now(self, model: Model) -> None:
        self.run("update pgbroker.jobs_live set run_after = clock_timestamp() where job_id = %s", model.job_id)
        model.place = self.now()

    @precondition(lambda self: self.models)
    @rule(route=ROUTES, index=INDEXES)
    def look(self, route: int, index: int) -> None:
        """Everything that only reads says the same as the model."""
        queue, models, model = self.routes[route], list(self.models.values()), self.pick(index, "DONE")
        job = queue.get(model.job_id)
        assert job is not None
        assert (job.status, job.attempts, job.priority, job.dedupe_key) == (
            model.status,
            model.attempts,
            model.priority,
            model.key,
        )
        assert (job.result is not None) == (model.status == "DONE")
        for key in KEYS:
            active, holder = queue.find_active(key), self.holder(key)
            assert (active and active.job_id) == (holder and holder.job_id)
        counts = queue.stats()["celery"]
        assert (counts.ready, counts.scheduled, counts.running, counts.dead) == (
            sum(m.is_ready for m in models),
            sum(m.status == "PENDING" and m.place is None and not m.is_expired for m in models),
            sum(m.status == "RUNNING" for m in models),
            sum(m.status == "DEAD" for m in models),
        )
        assert queue.listen(("celery",), 0) is any(m.is_ready for m in models)
        for waiting in models:  # who looks for work ends what has expired
            if waiting.status == "PENDING" and waiting.is_expired:
                waiting.leave("CANCELLED")

    @invariant()
    def rows_are_as_expected(self) -> None:
        found = self.run(
            "select job_id, status::text, attempts, case when status = 'RUNNING' then worker end, claim,"
            " run_after > clock_timestamp() from pgbroker.jobs where queue = 'celery'"
            " union all select job_id, status::text, attempts, null, null, null from pgbroker.job_history"
            " where job_id = any (%s) order by 1",
            list(self.models),
        )
        expected = []
        for m in self.models.values():
            is_live = m.status in ("PENDING", "RUNNING")
            is_future = m.place is None if is_live else None
            expected.append((m.job_id, m.status, m.attempts, m.worker, m.claim, is_future))
        found = [row if row[1] in ("PENDING", "RUNNING") else (*row[:5], None) for row in found]
        assert found == expected


@pytest.fixture(scope="module")
def routes(module_database: Database) -> Iterator[list[JobQueue]]:
    """Queues that lead to one database by connections of their own."""
    made = [JobQueue(module_database.url, application_name=f"route-{n}") for n in range(CONNECTIONS)]
    yield made
    for queue in made:
        queue.close()


def test_the_queue_does_what_the_model_does(routes: list[JobQueue], module_database: Database) -> None:
    for queue in routes:
        queue.stats()
    with closing(module_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select count(distinct application_name) from pg_stat_activity where application_name like 'route-%'"
        )
        assert cursor.fetchone() == (CONNECTIONS,)
        run_state_machine_as_test(
            lambda: JobQueueMachine(routes, cursor),
            settings=settings(
                max_examples=80,
                stateful_step_count=50,
                deadline=None,
                database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
