"""What is installed into Celery when a process first connects: signal handlers, nothing else.

They cost nothing outside a worker. Inside one, every request that Celery makes of a job of ours is handed to
:mod:`pgbroker.worker.outcome`, so that the row follows the task.
"""

from __future__ import annotations

from typing import Any

from pgbroker.transport.channel import Channel
from pgbroker.transport.link import Link
from pgbroker.transport.process import all_processes
from pgbroker.worker import outcome, prefork, requeued

#: A job that the worker has fetched ahead and cannot take up for so long goes back to its queue.
MOST_WAITING_SECONDS = 0.2

_is_installed = False


def install() -> None:
    """Connect the handlers; may be called any number of times."""
    global _is_installed
    if _is_installed:
        return
    from celery import signals

    signals.worker_ready.connect(_on_worker_ready, weak=False, dispatch_uid="pgbroker.worker_ready")
    signals.task_received.connect(_on_task_received, weak=False, dispatch_uid="pgbroker.task_received")
    _is_installed = True


def _on_worker_ready(sender: Any = None, **_: Any) -> None:
    """``sender`` is the worker's consumer: its pool says how much can run at once."""
    pool = getattr(sender, "pool", None)
    for process in all_processes():
        process.ledger.is_stopping = _is_worker_stopping
        process.is_interrupted = _is_in_signal_handler
        process.pool.cap = 1
        if pool is not None:
            process.pool_keeps_tasks = not prefork.is_prefork(pool)
            process.pool_slots = lambda: int(pool.num_processes)
    link = getattr(getattr(sender, "connection", None), "connection", None)
    if isinstance(link, Link):
        link.process.reports_start = True
        link.process.keeper.most_waiting_seconds = MOST_WAITING_SECONDS
        from pgbroker.queue.chores import RegularUpkeep
        from pgbroker.worker import unfollowed
        from pgbroker.worker.outbox import Outbox

        if prefork.is_prefork(pool):
            prefork.adapt(sender, link.process.ledger)
        elif type(pool).__module__ != "celery.concurrency.thread":
            # solo, greenlets: a task that hogs the thread would keep its own start from being told
            link.process.keeper.tell_soon()
        if hasattr(sender, "hub") and type(pool).__module__ != "celery.concurrency.solo":
            link.process.events.exchange = sender.app.conf.event_exchange
        unfollowed.watch(sender, link.process)
        link.process.keeper.take_on(Outbox(sender, link.process).feed, RegularUpkeep(link.options))


def _on_task_received(sender: Any = None, request: Any = None, **_: Any) -> None:
    channel = getattr(request.message, "channel", None)
    if isinstance(channel, Channel):
        outcome.follow(request, channel)
        requeued.overlook_stamps(request)


def _is_worker_stopping() -> bool:
    from celery.worker import state

    return state.should_stop is not None or state.should_terminate is not None


def _is_in_signal_handler() -> bool:
    from celery.utils import log

    return bool(getattr(log, "_in_sighandler", False))
