"""What the lease thread does beside its leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from pgbroker.options import Options
from pgbroker.postgres import pool
from pgbroker.queue import chores
from pgbroker.queue.alarm import Alarm
from pgbroker.queue.chores import Outcome, OutcomeFeed, RegularUpkeep
from pgbroker.queue.leases import LeaseKeeper
from pgbroker.queue.ledger import Ledger, Tag
from pgbroker.queue.store import store_for

Sql = Callable[..., list[tuple[Any, ...]]]


def wait_until(condition: Callable[[], object], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.01)


@pytest.fixture
def options(database: Any) -> Iterator[Options]:
    options = Options.from_url(database.url, {"lease_seconds": 2, "reap_interval": 60})
    pool.pool_for(options).query("select 1")
    yield options
    pool.close_all()


@pytest.fixture
def sql(options: Options, database: Any) -> Sql:
    def run(statement: str, *args: Any) -> list[tuple[Any, ...]]:
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, args or None)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def keeper(options: Options) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(options, Ledger(store_for(options.schema)))
    yield keeper
    keeper.stop()
    wait_until(lambda: not keeper._session.is_open)


class Notebook:
    """A receiver that writes down."""

    def __init__(self) -> None:
        self.got: list[Outcome] = []
        self.is_ready = True
        self.asked = 0
        self.on_ready: Callable[[], None] = lambda: None

    def ask(self) -> None:
        self.asked += 1
        if self.is_ready:
            self.on_ready()

    def receive(self, outcomes: list[Outcome]) -> None:
        self.got += outcomes


def publish_and_cancel(sql: Sql) -> str:
    ((task_id,),) = sql("select pgbroker.enqueue('app.task', '{\"x\": 1}')")
    sql("select pgbroker.cancel(job_id, 'PURGED', 'not wanted') from pgbroker.jobs_live")
    return str(task_id)


def test_outcomes_come_at_once_and_without_polling(keeper: LeaseKeeper, options: Options, sql: Sql) -> None:
    notebook = Notebook()
    feed = OutcomeFeed(options, notebook)
    notebook.on_ready = lambda: feed.go_on(keeper)
    keeper.take_on(feed)
    keeper.start()
    wait_until(lambda: feed._is_listening and feed.at > time.monotonic() + 10)
    began = time.monotonic()
    task_id = publish_and_cancel(sql)
    wait_until(lambda: notebook.got)
    assert time.monotonic() - began < 1
    (outcome,) = notebook.got
    assert (outcome.task_id, outcome.outcome, outcome.detail) == (task_id, "PURGED", "not wanted")
    assert outcome.deliveries == 1
    keeper.query(*feed.drop([outcome.outcome_id]))
    assert sql("select 1 from pgbroker.outcome_outbox") == []


def test_outcomes_wait_for_a_receiver_that_is_busy(keeper: LeaseKeeper, options: Options, sql: Sql) -> None:
    notebook = Notebook()
    notebook.is_ready = False
    feed = OutcomeFeed(options, notebook)
    notebook.on_ready = lambda: feed.go_on(keeper)
    keeper.take_on(feed)
    keeper.start()
    wait_until(lambda: feed._is_listening)
    publish_and_cancel(sql)
    asked = notebook.asked
    wait_until(lambda: notebook.asked > asked)
    assert sql("select deliveries from pgbroker.outcome_outbox") == [(0,)]
    notebook.is_ready = True
    feed.go_on(keeper)
    wait_until(lambda: notebook.got, 0.5)


def test_outcomes_arrive_after_the_connection_was_cut(keeper: LeaseKeeper, options: Options, sql: Sql) -> None:
    notebook = Notebook()
    feed = OutcomeFeed(options, notebook)
    notebook.on_ready = lambda: feed.go_on(keeper)
    keeper.take_on(feed)
    keeper.start()
    wait_until(lambda: feed._is_listening)
    sql("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pgbroker lease'")
    publish_and_cancel(sql)
    wait_until(lambda: notebook.got)


def test_upkeep_runs_in_a_process_that_consumes(keeper: LeaseKeeper, options: Options, sql: Sql) -> None:
    sql("insert into pgbroker.results values ('old', 'SUCCESS', '', now(), now())")
    upkeep = RegularUpkeep(options)
    assert 10 < upkeep.at - time.monotonic() <= 60
    upkeep.at = 0
    keeper.take_on(upkeep)
    keeper.start()
    wait_until(lambda: upkeep.at > time.monotonic())
    assert sql("select count(*) from pgbroker.results") == [(1,)]
    keeper.consumers["tag"] = "celery"
    upkeep.at = 0
    keeper.nudge()
    wait_until(lambda: sql("select count(*) from pgbroker.results") == [(0,)])


def test_upkeep_comes_less_and_less_often_while_there_is_nothing_to_do(keeper: LeaseKeeper, options: Options) -> None:
    keeper.consumers["tag"] = "celery"
    upkeep = RegularUpkeep(options)
    pauses = []
    for _ in range(8):
        upkeep.run(keeper)
        pauses.append(upkeep.at - time.monotonic())
    keeper._session.close()
    assert 80 <= pauses[0] <= 120
    assert 0.6 * chores.UPKEEP_MAX_SECONDS <= pauses[-1] <= chores.UPKEEP_MAX_SECONDS


def test_leases_hold_during_a_long_chore(keeper: LeaseKeeper, options: Options, sql: Sql) -> None:
    sql("select pgbroker.enqueue('app.task')")
    ((job_id, claim),) = sql(
        "select job_id, claim from pgbroker.claim(%s, array['celery'], 1, 2)", keeper.ledger.worker
    )
    keeper.ledger.deliver(Tag(job_id, claim), "tag")

    class Slow:
        at = 0.0
        is_done = False

        def run(self, keeper: LeaseKeeper) -> None:
            for _ in range(15):
                keeper.query("select pg_sleep(0.2)")
            self.is_done, self.at = True, time.monotonic() + 100

        def on_notified(self) -> None: ...

        def on_disconnected(self) -> None: ...

    slow = Slow()
    keeper.take_on(slow)
    keeper.start()
    wait_until(lambda: slow.is_done, 10)
    assert sql("select lease_until > now() from pgbroker.jobs_live") == [(True,)]
    assert sql("select new_status from pgbroker.reap()") == []


def test_a_chore_that_fails_is_tried_again_and_harms_nobody(keeper: LeaseKeeper, caplog: Any) -> None:
    class Broken:
        at = 0.0
        runs = 0

        def run(self, keeper: LeaseKeeper) -> None:
            self.runs += 1
            keeper.query("select 1 / 0")

        def on_notified(self) -> None: ...

        def on_disconnected(self) -> None: ...

    broken = Broken()
    keeper.take_on(broken)
    keeper.start()
    wait_until(lambda: broken.runs == 1)
    wait_until(lambda: "Broken failed and will be tried again" in caplog.text)
    broken.at = 0.0
    keeper.nudge()
    wait_until(lambda: broken.runs == 2)


def test_a_ring_before_the_sleep_is_not_lost() -> None:
    alarm = Alarm()
    alarm.ring()
    alarm.ring()
    began = time.monotonic()
    alarm.sleep(5)
    assert time.monotonic() - began < 1
    alarm.sleep(0.1)
    assert time.monotonic() - began >= 0.1
