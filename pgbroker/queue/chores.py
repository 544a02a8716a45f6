"""What a worker's lease thread does beside its leases: upkeep, and fetching what Celery has to be told."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any, NamedTuple, Protocol

from pgbroker.options import Options
from pgbroker.postgres.sql_files import in_statement
from pgbroker.queue.leases import LeaseKeeper
from pgbroker.queue.upkeep import Upkeep

#: Shortest pause between two rounds of upkeep; it doubles while there is nothing to do.
UPKEEP_SECONDS = 30.0
UPKEEP_MAX_SECONDS = 600.0

#: Outcomes that are fetched in one go.
OUTCOME_BATCH = 10

#: An outcome that was fetched and not dropped is handed out again after so many seconds.
OUTCOME_TAKEN_SECONDS = 60.0

#: A receiver that was ready so many seconds ago may be busy again.
READY_SECONDS = 0.25

#: Pause between two looks where notifications do not reach us; with them, a look now and then for those that come back.
OUTCOME_POLL_SECONDS = 5.0


class Outcome(NamedTuple):
    """An end that the broker made without Celery, with the message of its task."""

    outcome_id: int
    deliveries: int
    job_id: int
    task_id: str | None
    task_name: str
    queue: str
    outcome: str
    detail: str
    exchange: str | None
    routing_key: str | None
    content_type: str | None
    content_encoding: str | None
    headers: str
    properties: str | None
    body: bytes


class Receiver(Protocol):
    """Tells Celery, in the thread where Celery runs."""

    def ask(self) -> None:
        """Have :meth:`OutcomeFeed.go_on` called as soon as that thread is free; from any thread, returns at once.

        While a task hogs it, another worker had better tell.
        """

    def receive(self, outcomes: list[Outcome]) -> None:
        """Take outcomes, from any thread, and return at once."""


class OutcomeFeed:
    """Hands outcomes to the worker's :class:`Receiver` as soon as they come up.

    Args:
        options: The broker.
        receiver: Who tells Celery.
    """

    def __init__(self, options: Options, receiver: Receiver) -> None:
        self.at = 0.0
        self._receiver = receiver
        self._prefix = in_statement(options.schema) + "."
        self._can_listen = options.notify and options.listen_url is None
        self._is_listening = False
        self._answered_at: float | None = None
        poll_seconds = options.reap_interval if self._can_listen else min(OUTCOME_POLL_SECONDS, options.poll_interval)
        self._poll_seconds = poll_seconds

    def run(self, keeper: LeaseKeeper) -> None:
        """Fetch the next outcomes, if the receiver is ready for them."""
        if self._can_listen and not self._is_listening:
            channel = keeper.query(f"select {self._prefix}outcome_channel()")[0][0]
            keeper.query(f'listen "{channel}"')
            self._is_listening = True
        answered_at, self._answered_at = self._answered_at, None
        is_ready = answered_at is not None and time.monotonic() - answered_at <= READY_SECONDS
        if not is_ready or keeper.ledger.is_stopping():
            self.at = time.monotonic() + 1.0
            if not keeper.ledger.is_stopping():
                self._receiver.ask()
            return
        call = f"select {', '.join(Outcome._fields)} from {self._prefix}take_outcomes(%s, %s) order by outcome_id"
        rows = keeper.query(call, (OUTCOME_BATCH, OUTCOME_TAKEN_SECONDS))
        self.at = time.monotonic() + (1.0 if rows else self._poll_seconds)
        if rows:
            self._receiver.receive([Outcome(*row)._replace(body=bytes(row[-1])) for row in rows])

    def drop(self, outcome_ids: list[int]) -> tuple[str, tuple[Any, ...]]:
        """The statement that says that Celery was told of these."""
        return f"select {self._prefix}drop_outcomes(%s::bigint[])", (outcome_ids,)

    def on_notified(self) -> None:
        """There are outcomes."""
        self.at = 0.0

    def go_on(self, keeper: LeaseKeeper) -> None:
        """The receiver has nothing left and is ready to tell at once; from any thread."""
        self._answered_at = time.monotonic()
        self.at = 0.0
        keeper.nudge()

    def on_disconnected(self) -> None:
        """Listen again, and look: what was notified meanwhile has gone by."""
        self._is_listening = False
        self.at = 0.0


class RegularUpkeep:
    """Runs :class:`Upkeep` now and then: more often while there is something to do.

    Args:
        options: The broker.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._shortest = max(options.reap_interval, UPKEEP_SECONDS)
        self._interval = self._shortest
        self.at = time.monotonic() + self._interval * random.uniform(0.3, 1.0)

    def run(self, keeper: LeaseKeeper) -> None:
        """Run it once, if this process consumes at all."""
        is_needed = False
        if keeper.consumers:
            done = dataclasses.asdict(Upkeep(self._options, keeper.query).run_once())
            is_needed = bool(done.pop("is_leader")) and any(done.values())
        longest = max(self._shortest, UPKEEP_MAX_SECONDS)
        self._interval = self._shortest if is_needed else min(2 * self._interval, longest)
        self.at = time.monotonic() + self._interval * random.uniform(0.7, 1.0)

    def on_notified(self) -> None:
        """Nothing."""

    def on_disconnected(self) -> None:
        """Nothing."""
