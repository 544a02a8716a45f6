"""Publishing from forked children and from many threads: nothing lost, nothing twice, few connections."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from shop import Shop

CHILDREN, THREADS, CALLS = 4, 8, 10


SESSIONS = "select count(*) from pg_stat_activity where datname = current_database() and application_name ~ 'pgbroker'"

#: Now and then a fork beside publishing threads hangs: a lock that another thread held is held for ever in the child.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def fork(work: Callable[[], None]) -> int:
    """Run something in a forked child, as a server that was preloaded does."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def join(children: list[int]) -> None:
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(children)


def publish_in_threads(task: Any, child: int) -> None:
    errors: list[BaseException] = []

    def publish(thread: int) -> None:
        try:
            for number in range(CALLS):
                task.apply_async((child, thread, number), task_id=f"{child}-{thread}-{number}")
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def everything() -> list[str]:
    return sorted(f"{c}-{t}-{n}" for c in range(CHILDREN) for t in range(THREADS) for n in range(CALLS))


def test_children_of_a_process_that_has_published(shop: Shop) -> None:
    """Before the fork the parent has used its connection, and it goes on with it afterwards."""
    before = shop.pack.delay(0)
    with_parent = shop.sql(SESSIONS)[0][0]
    most = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            most[0] = max(most[0], shop.sql(SESSIONS)[0][0])

    children = [fork(lambda n=n: publish_in_threads(shop.pack, n)) for n in range(CHILDREN)]
    watcher = threading.Thread(target=watch)
    watcher.start()
    join(children)
    done.set()
    watcher.join()
    after = shop.pack.delay(1)
    assert sorted(set(shop.jobs()) - {before.id, after.id}) == everything()
    assert len(shop.jobs()) == len(everything()) + 2
    assert with_parent < most[0] <= with_parent + CHILDREN * THREADS


def test_the_pool_limit_bounds_connections(shop: Shop) -> None:
    app = shop.make_app(broker_pool_limit=2)
    before = shop.sql(SESSIONS)[0][0]
    join([fork(lambda: check_sessions(shop, app.tasks["pack"], before + 3))])
    app.close()


def check_sessions(shop: Shop, task: Any, limit: int) -> None:
    """Publish from all threads, and look before any connection is closed."""
    publish_in_threads(task, 0)
    assert 0 < shop.sql(SESSIONS)[0][0] <= limit


def test_a_fork_while_other_threads_publish(shop: Shop) -> None:
    """Locks and connections that a thread holds at that moment do not stay held in the child."""
    done = threading.Event()
    sent: list[str] = []

    def publish() -> None:
        while not done.is_set():
            sent.append(shop.pack.delay().id)

    publisher = threading.Thread(target=publish)
    publisher.start()
    for n in range(10):
        join([fork(lambda n=n: shop.pack.apply_async(task_id=f"child {n}"))])
    done.set()
    publisher.join()
    assert sorted(shop.jobs()) == sorted([*sent, *(f"child {n}" for n in range(10))])


def test_children_of_multiprocessing(shop: Shop) -> None:
    shop.pack.delay(0)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=publish_in_threads, args=(shop.pack, n)) for n in range(CHILDREN)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * CHILDREN
    assert len(shop.jobs()) == 1 + len(everything())


def test_a_child_that_awaits(shop: Shop) -> None:
    """Threads of the parent's, which do not exist in the child, are not waited for."""
    import asyncio

    asyncio.run(shop.pack.adelay(0))
    join([fork(lambda: asyncio.run(shop.pack.adelay(1)) and None)])
    asyncio.run(shop.pack.adelay(2))
    assert len(shop.jobs()) == 3
