"""Whatever consumers do to their messages, and whichever of them are taken for dead: each job ends once.

The model is the database itself: before a consumer says something about a message, its claim is looked up. A word
about a valid claim must have its effect, and one about a lost claim none.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from kombu import Connection, Consumer, Producer, Queue

from pgbroker.postgres import pool
from pgbroker.transport.process import all_processes

CONSUMERS = 3
OPTIONS = {"lease_seconds": 3600, "reap_interval": 3600, "max_attempts": 3}

which = st.integers(0, CONSUMERS - 1)


class Desk:
    """One consumer: its connection, and what it was given and has not dealt with."""

    def __init__(self, url: str, number: int, queue: str, prefetch: int) -> None:
        # a name of its own makes it a process of its own in the broker's eyes
        self.connection = Connection(url, transport_options={**OPTIONS, "application_name": f"desk {number}"})
        self.held: list[Any] = []
        self.channel = self.connection.channel()
        self.consumer = Consumer(self.channel, [Queue(queue)], on_message=self.held.append, prefetch_count=prefetch)
        self.consumer.consume()

    @property
    def worker(self) -> str:
        return str(self.channel.process.ledger.worker)


class ExactlyOnce(RuleBasedStateMachine):
    """Publishers, consumers and a reaper on one queue."""

    database: Any

    def __init__(self) -> None:
        super().__init__()
        self.admin = self.database.connect()
        self.cursor = self.admin.cursor()
        self.ended: dict[int, str] = {}
        self.desks: list[Desk] = []
        self.published = 0

    def rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        self.cursor.execute(sql, args or None)
        return self.cursor.fetchall() if self.cursor.description else []

    @initialize(prefetch=st.integers(1, 4))
    def open(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.publisher = Connection(self.database.url, transport_options=OPTIONS)
        channel = self.publisher.channel()
        self.queue = "exactly once"
        channel.queue_declare(self.queue)
        self.rows("truncate pgbroker.jobs, pgbroker.job_history, pgbroker.job_events")
        self.producer = Producer(channel)
        self.desks = [self.new_desk(number) for number in range(CONSUMERS)]

    def new_desk(self, number: int) -> Desk:
        return Desk(self.database.url, number, self.queue, self.prefetch)

    def state(self, job_id: int) -> tuple[Any, ...]:
        """What the job's row says; ``xmin`` changes with every update."""
        found = self.rows(
            "select status::text, claim, attempts, xmin::text from pgbroker.jobs where job_id = %s", job_id
        )
        return found[0] if found else (self.ended[job_id], None, None, None)

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.producer.publish(self.published, routing_key=self.queue)
            self.published += 1

    @rule(number=which)
    def consume(self, number: int) -> None:
        desk, ready = self.desks[number], self.rows("select count(*) from pgbroker.jobs_live where status = 'PENDING'")
        before = len(desk.held)
        with contextlib.suppress(socket.timeout):
            desk.connection.drain_events(timeout=0.2 if ready[0][0] and before < self.prefetch else 0.005)
        assert len(desk.held) <= self.prefetch
        tags = [message.delivery_tag for every in self.desks for message in every.held]
        assert len(tags) == len(set(tags)), "one claim was handed out twice"
        assert not {tag.job_id for tag in tags if tag.job_id in self.ended and self.state(tag.job_id)[0] == "RUNNING"}

    def is_valid(self, message: Any) -> bool:
        status, claim, *_ = self.state(message.delivery_tag.job_id)
        return status == "RUNNING" and claim == message.delivery_tag.claim

    @precondition(lambda self: any(desk.held for desk in self.desks))
    @rule(number=which, at=st.integers(0, 3), word=st.sampled_from(["ack", "reject", "requeue"]))
    def settle(self, number: int, at: int, word: str) -> None:
        held = self.desks[number].held
        if at >= len(held):
            return
        message = held.pop(at)
        job_id = message.delivery_tag.job_id
        valid, before = self.is_valid(message), self.state(job_id)
        getattr(message, word)()
        if valid and word == "ack":
            self.ended[job_id] = "DONE"
        after = self.state(job_id)
        assert after[0] == ({"ack": "DONE", "reject": "DEAD", "requeue": "PENDING"}[word] if valid else before[0])
        if not valid:
            assert after == before

    @rule(number=which)
    def lose(self, number: int) -> None:
        """Its leases run out, and somebody reaps: the consumer does not know, and goes on."""
        self.rows(
            "update pgbroker.jobs_live set lease_until = now() - interval '1 s' where worker = %s",
            self.desks[number].worker,
        )
        self.rows("select pgbroker.reap()")
        self.rows("update pgbroker.jobs_live set run_after = enqueued_at where status = 'PENDING'")  # no back-off here
        assert not self.rows("select from pgbroker.jobs_live where worker = %s", self.desks[number].worker)

    @rule(number=which)
    def close(self, number: int) -> None:
        """It goes in an orderly way, and another one comes."""
        desk = self.desks[number]
        desk.connection.release()
        assert not self.rows("select from pgbroker.jobs_live where worker = %s", desk.worker)
        self.desks[number] = self.new_desk(number)

    def teardown(self) -> None:
        try:
            for desk in self.desks:
                desk.connection.release()
            if self.desks:
                self.check_the_books()
                self.publisher.release()
        finally:
            self.admin.close()

    def check_the_books(self) -> None:
        left = self.rows("select job_id from pgbroker.jobs_live where status = 'PENDING'")
        dead = self.rows("select job_id from pgbroker.jobs_dead")
        done = self.rows("select job_id from pgbroker.job_history where status = 'DONE'")
        assert not self.rows("select from pgbroker.jobs_live where status = 'RUNNING'")
        ids = [job_id for (job_id,) in left + dead + done]
        assert len(ids) == len(set(ids)) == self.published
        assert {job_id for (job_id,) in done} == set(self.ended)


@pytest.fixture
def machine(database: Any) -> Iterator[type[ExactlyOnce]]:
    yield type("Machine", (ExactlyOnce,), {"database": database})
    for process in all_processes():
        process.keeper.stop()
    pool.close_all()


def test_each_job_ends_once(machine: type[ExactlyOnce]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
