"""A broker in the database of an application, and connections of that application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kinds_of_connection import KINDS, Opened, Opener
from shop import Shop

from pgbroker.postgres import pool
from pgbroker.transport.process import all_processes


@pytest.fixture
def shop(module_database: Any) -> Iterator[Shop]:
    shop = Shop(module_database)
    shop.sql(f"create table public.{shop.table} (n int primary key)")
    shop.pack.delay("first")  # the broker's own connection has been used before, as is usual
    shop.sql("delete from pgbroker.jobs_live")
    yield shop
    shop.app.close()
    for process in all_processes():
        process.keeper.stop()
    pool.close_all()


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Opener:
    return KINDS[request.param]


@pytest.fixture
def opened(kind: Opener, shop: Shop) -> Iterator[Opened]:
    """A connection of each kind, with a transaction that has written something."""
    with kind(shop.database.dsn) as opened:
        yield opened


@pytest.fixture
def refused(shop: Shop) -> Iterator[None]:
    """The server refuses to store jobs of the key "refused"."""
    shop.sql(
        "create or replace function public.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'no more of it' using errcode = 'XX123'; end $$"
    )
    shop.sql(
        "create trigger refuse before insert on pgbroker.jobs_live for each row "
        "when (new.dedupe_key = 'refused') execute function public.refuse()"
    )
    yield
    shop.sql("drop trigger refuse on pgbroker.jobs_live")
