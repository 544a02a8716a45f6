"""What all connections of one process to one broker share: sessions, the ledger, the lease thread."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres.pool import SessionPool, pool_for
from pgbroker.queue.claiming import Claiming
from pgbroker.queue.leases import LeaseKeeper
from pgbroker.queue.ledger import Ledger
from pgbroker.queue.routing import routing_for
from pgbroker.queue.store import store_for
from pgbroker.transport.events import EventBuffer
from pgbroker.transport.unbound import UnboundExchanges

logger = logging.getLogger(__name__)

#: At the end of the process, the longest wait for a statement of the lease thread.
LEAVE_SECONDS = 2.0


class Judge(Protocol):
    """Knows what it means that a worker is done with a task's message before it has taken the task up."""

    def meet(self, message: Any) -> None:
        """The message of a job is about to go to the worker."""

    def state_on_ack(self, message: Any) -> str | None:
        """Celery's state of the task; ``None`` for a message that is no task of this worker's."""

    def reason_on_reject(self, message: Any) -> str:
        """Why it was refused."""


class Process:
    """Use :func:`process_for`, which keeps one for each broker of this process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.store = store_for(options.schema)
        self.routing = routing_for(options.schema)
        self.ledger = Ledger(self.store)
        self.unbound_exchanges = UnboundExchanges()
        self.events = EventBuffer()
        self.claiming = Claiming(self.ledger)
        self.keeper = LeaseKeeper(options, self.ledger)
        #: Whether this is a Celery worker: its hooks say when a task begins and how it ends.
        self.reports_start = False
        #: How many tasks the worker's pool can run at once; ``None`` outside a worker.
        self.pool_slots: Callable[[], int] | None = None
        #: Whether a signal handler runs: it may have interrupted whoever has the only session, so nothing may wait.
        self.is_interrupted: Callable[[], bool] = lambda: False
        #: Set in a Celery worker.
        self.judge: Judge | None = None
        #: Whether the worker's pool runs what it was given also when the connection is lost meanwhile.
        self.pool_keeps_tasks = False

    @property
    def pool(self) -> SessionPool:
        """Sessions for short statements."""
        return pool_for(self.options)

    def leave(self) -> None:
        """The process ends: what it holds goes back, or is dead where it must not run again.

        By now the pool's processes are gone and its threads have ended, so nothing of it is running any more.
        """
        self.keeper.stop(wait_seconds=LEAVE_SECONDS)
        self.ledger.stop_all()
        has_news = self.ledger.news_age is not None
        # connections that nobody has closed, such as Flower's
        is_on_the_books = bool(self.keeper.consumers or self.keeper.kept_queues)
        if not has_news and not is_on_the_books:
            return
        try:
            with self.pool.lend() as session:
                self.keeper.say_everything(session)
                if is_on_the_books:
                    session.query(*self.routing.depart(self.ledger.worker, None))
        except errors.PgBrokerError as exc:
            if has_news:
                logger.warning("could not give back what this process held; its leases will run out: %s", exc)


_processes: dict[Options, Process] = {}
_lock = threading.Lock()


def process_for(options: Options) -> Process:
    """The shared state for that broker; another one in a forked child."""
    with _lock:
        if options not in _processes:
            _processes[options] = Process(options)
            if options.embedded_dir is not None:
                importlib.import_module("pgbroker.postgres.embedded")
            # exit handlers run last in, first out: ours goes before that which stops the embedded server
            atexit.unregister(_leave)
            atexit.register(_leave)
        return _processes[options]


def all_processes() -> list[Process]:
    """The shared states of this process, one for each broker that was used."""
    return list(_processes.values())


def _leave() -> None:
    for process in all_processes():
        process.leave()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _processes.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
