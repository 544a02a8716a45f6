"""Publishing for asyncio: the call runs in one of a few threads, so the event loop never waits for the server.

A call that joins an open transaction runs where the transaction's connection is at home: in this thread, in a greenlet
in which SQLAlchemy's asynchronous drivers can be awaited. A thread would have that connection for itself after a
cancelled ``await``, when the application has long gone on with it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import _state

from pgbroker.queue import joined

#: Calls of a process that are on their way to the server side by side; each needs a connection for its time.
PUBLISHING_THREADS = 4

_threads: ThreadPoolExecutor | None = None


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_forget)


async def publish(call: Callable[[], Any]) -> Any:
    """Run a call that publishes.

    A cancelled ``await`` stops waiting. A call that had not begun is not made; one that had runs to its end, and
    whether it was stored is then not known.
    """
    if joined.current() is not None:
        return await _in_greenlet(call)
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(PUBLISHING_THREADS, "pgbroker-publish")
    task = _state.get_current_worker_task()
    request = None if task is None else task.request_stack.top
    work = functools.partial(contextvars.copy_context().run, _as_part_of, task, request, call)
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def _in_greenlet(call: Callable[[], Any]) -> Any:
    try:
        from sqlalchemy.util import greenlet_spawn

        spawned = greenlet_spawn(call)
    except ImportError:  # without greenlet there is no asynchronous session either
        return call()
    return await spawned


def _as_part_of(task: Any, request: Any, call: Callable[[], Any]) -> Any:
    """The call, as the running task makes it: Celery asks the thread for parent and root of what is published.

    It joins nothing: what the application does after a cancelled ``await`` is no business of it.
    """
    if task is None:
        with joined.outside():
            return call()
    _state.push_current_task(task)  # type: ignore[attr-defined]
    task.request_stack.push(request)
    try:
        with joined.outside():
            return call()
    finally:
        task.request_stack.pop()
        _state.pop_current_task()  # type: ignore[attr-defined]
