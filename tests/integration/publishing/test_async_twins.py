"""The synchronous side of SQLAlchemy's asynchronous sessions and connections, inside ``run_sync``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from async_sessions import DRIVERS, async_session
from shop import Shop
from sqlalchemy.orm import Session

import pgbroker
from pgbroker import errors


def in_session(shop: Shop, driver: str, work: Callable[[Session], Any], database: Any = None) -> Any:
    """Run something in ``run_sync`` of a new session, which is closed without a commit."""

    async def run() -> Any:
        async with async_session(database or shop.database, driver) as session:
            return await session.run_sync(work)

    return asyncio.run(run())


@pytest.mark.parametrize("driver", DRIVERS)
def test_commit_rollback_savepoint_and_duplicates(shop: Shop, driver: str) -> None:
    kept: list[Any] = []

    def work(session: Session) -> None:
        session.execute(sqlalchemy.text(f"insert into public.{shop.table} values (1)"))
        with pgbroker.transaction(session):
            kept.append(shop.pack.apply_async((1, "50 %"), dedupe_key="k", countdown=1, expires=60))
            assert shop.pack.apply_async(dedupe_key="k").id == kept[0].id
            nested = session.begin_nested()
            shop.pack.delay(2)
            nested.rollback()
        assert shop.jobs() == []
        session.commit()
        assert shop.jobs() == [kept[0].id]
        with pgbroker.transaction(session.connection()):
            shop.pack.delay(3)
        session.rollback()

    in_session(shop, driver, work)
    assert (shop.jobs(), shop.orders()) == ([kept[0].id], [1])


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.usefixtures("refused")
def test_a_failure_does_not_pass_for_a_commit(shop: Shop, driver: str) -> None:
    def work(session: Session) -> None:
        with pgbroker.transaction(session):
            nested = session.begin_nested()
            with pytest.raises(errors.TransactionFailed, match="no more of it") as caught:
                shop.pack.apply_async(dedupe_key="refused")
            assert caught.value.sqlstate == "XX123"
            nested.rollback()
            shop.pack.delay(1)
        session.commit()
        with pytest.raises(errors.TransactionFailed), pgbroker.transaction(session):
            shop.pack.apply_async(dedupe_key="refused")
        with pytest.raises(errors.TransactionFailed, match="nothing was committed"):
            session.commit()
        session.rollback()
        with pgbroker.transaction(session):
            shop.pack.delay(2)
        session.commit()

    in_session(shop, driver, work)
    assert len(shop.jobs()) == 2


@pytest.mark.parametrize("driver", DRIVERS)
def test_refused_connections(shop: Shop, driver: str, database: Any) -> None:
    def autocommit(session: Session) -> None:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        with pytest.raises(errors.NotInTransaction), pgbroker.transaction(session):
            pytest.fail("not refused")

    def elsewhere(session: Session) -> None:
        with pytest.raises(errors.OtherDatabase, match=database.name), pgbroker.transaction(session):
            shop.pack.delay(1)

    in_session(shop, driver, autocommit)
    in_session(shop, driver, elsewhere, database)
    assert shop.jobs() == []
