"""A publish that makes the caller's transaction fail: nobody may believe that something was committed."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import sqlalchemy
from django.db import transaction as django_transaction
from django.db.transaction import TransactionManagementError
from kinds_of_connection import Opened, Opener, django_database, open_psycopg2
from shop import Shop
from sqlalchemy.orm import Session

import pgbroker
from pgbroker import errors
from pgbroker.transport.publishing import PublishingChannel
from pgbroker.transport.transport import Transport

pytestmark = pytest.mark.usefixtures("refused")


def fail(shop: Shop) -> Any:
    return shop.pack.apply_async(dedupe_key="refused")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The publishes that kombu asked for."""
    calls: list[Any] = []
    publish = PublishingChannel.publish_job

    def counted(self: PublishingChannel, *args: Any) -> Any:
        calls.append(args)
        return publish(self, *args)

    monkeypatch.setattr(PublishingChannel, "publish_job", counted)
    return calls


def test_a_refused_statement_is_not_repeated(shop: Shop, opened: Opened, calls: list[Any]) -> None:
    shop.insert(opened, 1)
    said = r"no more of it.*roll it back"
    with pytest.raises(errors.TransactionFailed, match=said) as caught, pgbroker.transaction(opened.conn):
        fail(shop)
    assert caught.value.sqlstate == "XX123"
    assert caught.value.__cause__ is not None
    assert not issubclass(
        errors.TransactionFailed, (*Transport.connection_errors, *Transport.recoverable_channel_errors)
    )
    assert len(calls) == 1
    opened.rollback()
    with pgbroker.transaction(opened.conn):
        result = shop.pack.delay(1)
    opened.commit()
    assert (shop.jobs(), shop.orders()) == ([result.id], [])


def test_one_that_was_caught_is_raised_again_at_the_end_of_the_block(shop: Shop, opened: Opened) -> None:
    def block() -> None:
        with pgbroker.transaction(opened.conn):
            for _ in range(2):
                with pytest.raises(errors.TransactionFailed):
                    fail(shop)

    with pytest.raises(errors.TransactionFailed, match="no more of it"):
        block()
    opened.rollback()
    assert shop.jobs() == []


def test_a_savepoint_mends_it(shop: Shop, opened: Opened) -> None:
    shop.insert(opened, 1)
    with pgbroker.transaction(opened.conn):
        with opened.savepoint(), pytest.raises(errors.TransactionFailed):
            fail(shop)
        result = shop.pack.delay(2)
    opened.commit()
    assert (shop.jobs(), shop.orders()) == ([result.id], [1])


def test_a_lost_connection_is_not_repeated_elsewhere(shop: Shop, kind: Opener, calls: list[Any]) -> None:
    with kind(shop.database.dsn) as opened:
        with pgbroker.transaction(opened.conn):
            shop.pack.delay(1)
        (pid,) = opened.execute("select pg_backend_pid()")[0]
        shop.sql("select pg_terminate_backend(%s)", pid)
        deadline = time.monotonic() + 10
        while shop.sql("select 1 from pg_stat_activity where pid = %s", pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(errors.TransactionFailed), pgbroker.transaction(opened.conn):
            shop.pack.delay(2)
        assert len(calls) == 2
        assert shop.jobs() == []
        try:
            opened.rollback()
        except Exception as exc:
            assert "clos" in str(exc) or "connection" in str(exc)  # noqa: PT017


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_sqlalchemys_commit_raises(shop: Shop, kind: str) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg2://", connect_args=shop.database.dsn)
    insert = sqlalchemy.text(f"insert into public.{shop.table} values (:n)")
    with engine.connect() as connection, Session(engine) as session:
        conn: Any = session if kind == "session" else connection
        conn.execute(insert, {"n": 1})
        with pytest.raises(errors.TransactionFailed), pgbroker.transaction(conn):
            fail(shop)
        with pytest.raises(errors.TransactionFailed, match=r"nothing was committed.*no more of it"):
            conn.commit()
        conn.rollback()
        conn.execute(insert, {"n": 2})
        conn.commit()
    assert shop.orders() == [2]

    def begin_block() -> None:
        with engine.begin() as connection:
            connection.execute(insert, {"n": 3})
            with pytest.raises(errors.TransactionFailed), pgbroker.transaction(connection):
                fail(shop)

    with pytest.raises(errors.TransactionFailed):
        begin_block()
    assert shop.orders() == [2]
    engine.dispose()


def test_django_refuses_queries_and_rolls_back(shop: Shop) -> None:
    with django_database(shop.database.dsn) as wrapper:
        insert = f"insert into public.{shop.table} values (%s)"
        with django_transaction.atomic():
            wrapper.cursor().execute(insert, [1])
            with pytest.raises(errors.TransactionFailed), pgbroker.transaction("default"):
                fail(shop)
            with pytest.raises(TransactionManagementError), wrapper.cursor() as cursor:
                cursor.execute(insert, [2])
            with pytest.raises(errors.TransactionFailed, match="to be rolled back"), pgbroker.transaction("default"):
                pass
        with django_transaction.atomic():
            wrapper.cursor().execute(insert, [3])
    assert shop.orders() == [3]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_key_that_the_snapshot_does_not_see(shop: Shop, opened: Opened, level: str) -> None:
    """What the snapshot sees is a duplicate as always; what was committed later is a serialization failure."""
    live = shop.pack.apply_async(dedupe_key="seen")
    opened.execute(f"set transaction isolation level {level}")
    opened.execute(f"select count(*) from public.{shop.table}")
    later = shop.pack.apply_async(dedupe_key="later")
    with pgbroker.transaction(opened.conn):
        assert shop.pack.apply_async(dedupe_key="seen").id == live.id
    with pytest.raises(errors.TransactionFailed) as caught, pgbroker.transaction(opened.conn):
        shop.pack.apply_async(dedupe_key="later")
    assert caught.value.sqlstate == "40001"
    opened.rollback()
    assert shop.jobs() == [live.id, later.id]


def test_a_read_only_transaction(shop: Shop, opened: Opened) -> None:
    opened.execute("set transaction read only")
    with pytest.raises(errors.TransactionFailed, match="read-only"), pgbroker.transaction(opened.conn):
        shop.pack.delay(1)
    opened.rollback()


def test_opposite_orders_of_keys_are_a_deadlock(shop: Shop, opened: Opened) -> None:
    with open_psycopg2(shop.database.dsn) as other:
        with pgbroker.transaction(other.conn):
            shop.pack.apply_async(dedupe_key="a")
        with pgbroker.transaction(opened.conn):
            shop.pack.apply_async(dedupe_key="b")
        outcomes: list[BaseException | None] = []

        def publish(owner: Opened, key: str) -> None:
            try:
                with pgbroker.transaction(owner.conn):
                    shop.pack.apply_async(dedupe_key=key)
            except errors.TransactionFailed as exc:
                outcomes.append(exc)
                owner.rollback()

        thread = threading.Thread(target=publish, args=(other, "b"))
        thread.start()
        shop.wait_for_a_lock()
        publish(opened, "a")
        thread.join()
        assert [getattr(outcome, "sqlstate", None) for outcome in outcomes] == ["40P01"]
        opened.rollback()
        other.rollback()
