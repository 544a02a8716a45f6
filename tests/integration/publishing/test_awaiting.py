"""``await task.adelay()``: the event loop goes on, and what becomes of calls that are given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from async_sessions import DRIVERS, async_session
from celery import Celery
from proxy import Proxy, proxied
from shop import Shop

import pgbroker
from pgbroker.publishing.awaiting import PUBLISHING_THREADS


class Behind:
    """The shop's task, called through a proxy."""

    def __init__(self, shop: Shop, proxy: Proxy, url: str) -> None:
        self.proxy = proxy
        self.app = Celery("behind", broker=url, backend=url, task_cls="pgbroker:Task", set_as_current=False)
        self.app.conf.task_default_queue = shop.queue

        @self.app.task(name="pack", shared=False)
        def pack(*args: Any) -> None: ...

        self.pack: Any = pack


@pytest.fixture
def behind(shop: Shop) -> Iterator[Behind]:
    with proxied(shop.database) as (proxy, url):
        behind = Behind(shop, proxy, url)
        behind.pack.delay("first")
        shop.sql("delete from pgbroker.jobs_live")
        yield behind
        behind.app.close()


async def longest_gap(stop: asyncio.Event) -> float:
    """The longest time in seconds between two turns of the loop."""
    longest, last = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


def test_the_loop_keeps_turning_while_the_server_is_slow(shop: Shop, behind: Behind) -> None:
    behind.proxy.delay_seconds = 0.5

    async def run() -> tuple[list[Any], float, float]:
        stop = asyncio.Event()
        gap = asyncio.create_task(longest_gap(stop))
        began = time.monotonic()
        results = await asyncio.gather(*(behind.pack.adelay(n) for n in range(PUBLISHING_THREADS)))
        seconds = time.monotonic() - began
        stop.set()
        return results, seconds, await gap

    results, seconds, gap = asyncio.run(run())
    assert seconds >= 0.5
    assert gap < 0.3
    assert sorted(shop.jobs()) == sorted(result.id for result in results)


def test_options_results_and_errors_are_those_of_apply_async(shop: Shop) -> None:
    async def run() -> None:
        first = await shop.pack.aapply_async((1,), dedupe_key="k", countdown=60)
        second = await shop.pack.aapply_async((1,), dedupe_key="k")
        assert (second.id, first.duplicate, second.duplicate) == (first.id, False, True)
        with pytest.raises(pgbroker.DuplicateJob):
            await shop.pack.aapply_async(dedupe_key="k", on_duplicate="raise")

    asyncio.run(run())
    assert len(shop.jobs()) == 1


def test_a_call_that_had_not_begun_when_it_was_cancelled_is_not_made(shop: Shop, behind: Behind) -> None:
    behind.proxy.delay_seconds = 0.5

    async def run() -> None:
        calls = [asyncio.create_task(behind.pack.adelay(n)) for n in range(PUBLISHING_THREADS + 3)]
        await asyncio.sleep(0.2)
        for call in calls:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done)
        behind.proxy.delay_seconds = 0
        await behind.pack.adelay("last")

    asyncio.run(run())
    deadline = time.monotonic() + 10
    while len(shop.jobs()) < PUBLISHING_THREADS + 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    assert len(shop.jobs()) == PUBLISHING_THREADS + 1


def test_many_calls_need_few_connections(shop: Shop) -> None:
    async def run() -> None:
        await asyncio.gather(*(shop.pack.adelay(n) for n in range(200)))

    asyncio.run(run())
    sql = "select count(*) from pg_stat_activity where datname = current_database() and application_name like %s"
    assert shop.sql(sql, "%pgbroker client%")[0][0] <= PUBLISHING_THREADS + 1
    assert len(shop.jobs()) == 200


@pytest.mark.parametrize("driver", DRIVERS)
def test_calls_in_an_asynchronous_session_join_it(shop: Shop, driver: str) -> None:
    async def run() -> str:
        async with async_session(shop.database, driver) as session:
            await session.execute(sqlalchemy.text(f"insert into public.{shop.table} values (1)"))
            with pgbroker.transaction(await session.run_sync(lambda s: s)):
                kept = await shop.pack.adelay(1)
            assert shop.jobs() == []
            await session.commit()
            with pgbroker.transaction(session.sync_session):
                await shop.pack.adelay(2)
            await session.rollback()
        return kept.id

    kept = asyncio.run(run())
    assert (shop.jobs(), shop.orders()) == ([kept], [1])


def test_a_running_task_is_the_parent_of_what_it_awaits(shop: Shop) -> None:
    @shop.app.task(name="parent", bind=True, shared=False)
    def parent(self: Any) -> None:
        asyncio.run(shop.pack.adelay(1))

    from celery.app.trace import trace_task

    trace_task(parent, "the-parent", (), {}, {"id": "the-parent", "is_eager": False}, app=shop.app)
    headers = shop.sql("select headers::jsonb ->> 'parent_id' from pgbroker.jobs_live where queue = %s", shop.queue)
    assert headers == [("the-parent",)]
