"""A server that is down or silent: how soon a call fails, each time, and that it works again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from proxy import Proxy, proxied

from pgbroker.postgres import pool
from pgbroker.transport.process import all_processes


@pytest.fixture
def way(database: Any) -> Iterator[tuple[Proxy, Any]]:
    """A proxy, and a task whose broker lies behind it."""
    with proxied(database) as (proxy, url):
        app = Celery("behind", broker=url, backend=url, task_cls="pgbroker:Task", set_as_current=False)

        @app.task(name="pack", shared=False)
        def pack(*args: Any) -> None: ...

        yield proxy, pack
        app.close()
        for process in all_processes():
            process.keeper.stop()
        pool.close_all()


def seconds_to_fail(task: Any, **options: Any) -> float:
    began = time.monotonic()
    with pytest.raises(OperationalError):
        task.apply_async((1,), **options)
    return time.monotonic() - began


@pytest.mark.parametrize("is_known", [True, False], ids=["lost", "never there"])
def test_a_server_that_is_down(way: tuple[Proxy, Any], is_known: bool) -> None:
    """Celery's own policy: three more attempts, at once, after 0.2 s and after 0.4 s."""
    proxy, task = way
    if is_known:
        task.delay(0)
    proxy.stop()
    for _ in range(3):
        assert seconds_to_fail(task) < 3
    assert seconds_to_fail(task, retry_policy={"max_retries": 1, "interval_start": 0}) < 0.5
    proxy.start()
    for number in range(3):
        task.delay(number)
    proxy.stop()
    assert seconds_to_fail(task) < 3


def test_a_server_that_is_down_for_who_awaits(way: tuple[Proxy, Any]) -> None:
    proxy, task = way
    proxy.stop()
    with pytest.raises(OperationalError):
        asyncio.run(task.adelay(1))
    proxy.start()
    asyncio.run(task.adelay(1))
