"""Calls that join an open transaction by themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from celery.contrib.django.task import DjangoTask
from django.db import transaction
from kinds_of_connection import django_database, open_psycopg2
from shop import Shop
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import pgbroker
from pgbroker import errors
from pgbroker.publishing import automatic


@pytest.fixture
def pack(shop: Shop) -> Iterator[Any]:
    """The task of an application that joins by itself."""
    app = shop.make_app(pgbroker_join_transactions=True)
    yield app.tasks["pack"]
    app.close()


@pytest.fixture
def engine(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlalchemy.Engine]:
    monkeypatch.setattr(automatic, "_scoped_sessions", [])
    engine = sqlalchemy.create_engine("postgresql+psycopg2://", connect_args=shop.database.dsn)
    yield engine
    engine.dispose()


# -- Django -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", ["default", "other"])
def test_atomic_blocks(shop: Shop, pack: Any, alias: str) -> None:
    with django_database(shop.database.dsn, alias):
        with transaction.atomic(using=alias):
            kept = pack.delay(1)
            with transaction.atomic(using=alias):
                pack.delay(2)
                transaction.set_rollback(True, using=alias)
            assert shop.jobs() == []
        assert shop.jobs() == [kept.id]
        outside = pack.delay(3)
        assert shop.jobs() == [kept.id, outside.id]


def test_nothing_joins_unless_it_is_asked_for(shop: Shop) -> None:
    with django_database(shop.database.dsn), transaction.atomic():
        outside = shop.pack.delay(1)
        assert shop.jobs() == [outside.id]
        transaction.set_rollback(True)


def test_a_task_of_its_own_mind(shop: Shop, pack: Any) -> None:
    @shop.app.task(shared=False, join_transaction=True)
    def joins() -> None: ...

    @pack.app.task(shared=False, join_transaction=False)
    def stays_outside() -> None: ...

    with django_database(shop.database.dsn), transaction.atomic():
        joins.delay()
        outside = stays_outside.delay()
        assert shop.jobs() == [outside.id]
        transaction.set_rollback(True)
    assert shop.jobs() == [outside.id]


def test_atomic_blocks_of_other_databases_do_not_count(shop: Shop, pack: Any, database: Any) -> None:
    with django_database(database.dsn), transaction.atomic():
        outside = pack.delay(1)
        assert shop.jobs() == [outside.id]
        with django_database(shop.database.dsn, "other"), transaction.atomic(using="other"):
            pack.delay(2)
            transaction.set_rollback(True, using="other")
        transaction.set_rollback(True)
    assert shop.jobs() == [outside.id]


def test_a_named_transaction_wins(shop: Shop, pack: Any) -> None:
    with django_database(shop.database.dsn), open_psycopg2(shop.database.dsn) as opened:
        with transaction.atomic():
            with pgbroker.transaction(opened.conn):
                pack.delay(1)
            kept = pack.delay(2)
        opened.rollback()
    assert shop.jobs() == [kept.id]


def test_delay_on_commit_goes_on_working(shop: Shop, pack: Any) -> None:
    class Both(pgbroker.Task, DjangoTask):
        abstract = True

    @pack.app.task(base=Both, shared=False)
    def task(number: int) -> None: ...

    with django_database(shop.database.dsn):
        with transaction.atomic():
            task.delay_on_commit(1)
            assert shop.jobs() == []
        assert len(shop.jobs()) == 1
        with transaction.atomic():
            task.delay_on_commit(1)
            task.delay(2)
            transaction.set_rollback(True)
    assert len(shop.jobs()) == 1


def test_a_transaction_that_has_failed_is_no_reason_to_publish_outside(shop: Shop, pack: Any) -> None:
    with django_database(shop.database.dsn), transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(errors.TransactionFailed):
            pack.delay(1)
    assert shop.jobs() == []


# -- SQLAlchemy -------------------------------------------------------------------------------------


def test_a_scoped_session(shop: Shop, pack: Any, engine: sqlalchemy.Engine) -> None:
    sessions = scoped_session(sessionmaker(engine))
    pgbroker.register_session(sessions)
    pgbroker.register_session(sessions)
    before = pack.delay(1)
    sessions.execute(sqlalchemy.text(f"insert into public.{shop.table} values (1)"))
    inside = pack.delay(2)
    assert shop.jobs() == [before.id]
    sessions.commit()
    assert shop.jobs() == [before.id, inside.id]
    sessions.execute(sqlalchemy.text("select 1"))
    pack.delay(3)
    sessions.remove()
    after = pack.delay(4)
    assert shop.jobs() == [before.id, inside.id, after.id]


def test_sessions_of_a_sessionmaker(shop: Shop, pack: Any, engine: sqlalchemy.Engine) -> None:
    make = sessionmaker(engine)
    pgbroker.register_session(make)
    with make.begin():
        inside = pack.delay(1)
        assert shop.jobs() == []
    assert shop.jobs() == [inside.id]
    session = make()
    outside = pack.delay(2)
    assert shop.jobs() == [inside.id, outside.id]
    session.execute(sqlalchemy.text("select 1"))
    pack.delay(3)
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(pack.delay(4)))
    thread.start()
    thread.join()
    session.close()
    with Session(engine) as unregistered, unregistered.begin():
        last = pack.delay(5)
        assert shop.jobs() == [inside.id, outside.id, elsewhere[0].id, last.id]


def test_one_of_two_open_transactions_has_to_be_named(shop: Shop, pack: Any, engine: sqlalchemy.Engine) -> None:
    make = sessionmaker(engine)
    pgbroker.register_session(make)
    with make.begin() as first, make.begin():
        with pytest.raises(errors.NotInTransaction, match="several"):
            pack.delay(1)
        with pgbroker.transaction(first):
            named = pack.delay(2)
    assert shop.jobs() == [named.id]


def test_only_what_makes_sessions_can_be_registered(engine: sqlalchemy.Engine) -> None:
    with pytest.raises(TypeError, match="sessionmaker"):
        pgbroker.register_session(engine)


# -- without Celery ---------------------------------------------------------------------------------


def test_the_job_queue_joins_in_a_block(shop: Shop) -> None:
    with pgbroker.JobQueue(shop.database.url) as queue, open_psycopg2(shop.database.dsn) as opened:
        with pgbroker.transaction(opened.conn):
            assert queue.enqueue("pack", {"n": 1}, queue=shop.queue, dedupe_key="k") is not None
            assert queue.enqueue("pack", {"n": 2}, queue=shop.queue, dedupe_key="k") is None
        assert shop.jobs() == []
        opened.commit()
    assert len(shop.jobs()) == 1
