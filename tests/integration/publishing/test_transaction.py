"""Tasks that are published in the application's own transaction, on each kind of connection."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kinds_of_connection import Opened, Opener, open_psycopg2
from shop import Shop

import pgbroker
from pgbroker import errors


def test_a_commit_takes_the_task_along(shop: Shop, opened: Opened) -> None:
    shop.insert(opened, 1)
    with pgbroker.transaction(opened.conn):
        result = shop.pack.delay(1, text="50 % ü \\ ' \N{SNOWMAN}")
    assert (shop.jobs(), shop.orders()) == ([], [])
    assert result.duplicate is False
    opened.commit()
    assert (shop.jobs(), shop.orders()) == ([result.id], [1])


def test_a_task_alone_is_committed_too(shop: Shop, opened: Opened) -> None:
    with pgbroker.transaction(opened.conn):
        result = shop.pack.apply_async((1,), countdown=3600, expires=7200, priority=7)
    assert shop.jobs() == []
    opened.commit()
    sql = "select task_id, priority, run_after > now() + interval '50 minutes', expires_at > run_after"
    assert shop.sql(f"{sql} from pgbroker.jobs where queue = %s", shop.queue) == [(result.id, 7, True, True)]


def test_a_rollback_takes_the_task_back(shop: Shop, opened: Opened) -> None:
    shop.insert(opened, 1)
    with pgbroker.transaction(opened.conn):
        shop.pack.delay(1)
    opened.rollback()
    shop.insert(opened, 2)
    opened.commit()
    assert (shop.jobs(), shop.orders()) == ([], [2])


def test_a_savepoint_takes_its_tasks_back(shop: Shop, opened: Opened) -> None:
    with pgbroker.transaction(opened.conn):
        first = shop.pack.apply_async((1,), dedupe_key="first")
        with opened.savepoint():
            shop.insert(opened, 1)
            shop.pack.apply_async((2,), dedupe_key="second")
        again = shop.pack.apply_async((1,), dedupe_key="first")
        other = shop.pack.apply_async((2,), dedupe_key="second")
    opened.commit()
    assert (again.id, again.duplicate, other.duplicate) == (first.id, True, False)
    assert (shop.jobs(), shop.orders()) == ([first.id, other.id], [])


def test_an_error_in_the_block_leaves_the_end_to_the_application(shop: Shop, opened: Opened) -> None:
    shop.insert(opened, 1)
    with pytest.raises(ZeroDivisionError), pgbroker.transaction(opened.conn):
        1 / len(shop.jobs() if shop.pack.delay(1) else "x")
    assert shop.jobs() == []
    outside = shop.pack.delay(2)
    assert shop.jobs() == [outside.id]
    opened.rollback()
    assert (shop.jobs(), shop.orders()) == ([outside.id], [])


def test_a_duplicate_leaves_the_transaction_usable(shop: Shop, opened: Opened) -> None:
    live = shop.pack.apply_async(dedupe_key="k")
    with pgbroker.transaction(opened.conn):
        result = shop.pack.apply_async(dedupe_key="k")
        assert (result.id, result.duplicate) == (live.id, True)
        with pytest.raises(pgbroker.DuplicateJob) as caught:
            shop.pack.apply_async(dedupe_key="k", on_duplicate="raise")
        assert caught.value.task_id == live.id
        shop.insert(opened, 1)
        other = shop.pack.apply_async(dedupe_key="other")
    opened.commit()
    assert (shop.jobs(), shop.orders()) == ([live.id, other.id], [1])


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_key_that_an_open_transaction_holds_is_waited_for(shop: Shop, kind: Opener, ends_well: bool) -> None:
    with kind(shop.database.dsn) as opened, open_psycopg2(shop.database.dsn) as holder:
        with pgbroker.transaction(holder.conn):
            held = shop.pack.apply_async(dedupe_key="k")

        def end() -> None:
            shop.wait_for_a_lock()
            holder.commit() if ends_well else holder.rollback()

        thread = threading.Thread(target=end)
        thread.start()
        with pgbroker.transaction(opened.conn):
            result = shop.pack.apply_async(dedupe_key="k")
        thread.join()
        opened.commit()
        assert result.duplicate is ends_well
        assert shop.jobs() == [held.id if ends_well else result.id]


def test_what_cannot_be_stored_is_refused_before_it_is_sent(
    shop: Shop, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbroker.transport.envelope.MAX_MESSAGE_BYTES", 10_000)
    shop.insert(opened, 1)
    with pgbroker.transaction(opened.conn):
        with pytest.raises(errors.MessageTooLarge, match="more than the 10000"):
            shop.pack.delay("x" * 10_000)
        for bad in ({"task_id": "a\0b"}, {"dedupe_key": "a\0b"}):
            with pytest.raises(ValueError, match="NUL"):
                shop.pack.apply_async(**bad)
        result = shop.pack.delay(2)
    opened.commit()
    assert (shop.jobs(), shop.orders()) == ([result.id], [1])


def test_another_database_is_refused(shop: Shop, kind: Opener, database: Any) -> None:
    with kind(database.dsn) as opened:
        with pgbroker.transaction(opened.conn), pytest.raises(errors.OtherDatabase) as caught:
            shop.pack.delay(1)
        assert database.name in str(caught.value)
        assert shop.database.name in str(caught.value)
        assert opened.execute("select 1") == [(1,)]
    assert shop.jobs() == []
