"""What Celery's prefork pool forgets, and we must not.

Its event loop writes tasks into the pipes of pool processes and reads back what became of them. Three moments lose
sight of a task that a pool process has:

* When the broker's connection is lost, ``flush()`` drops all tasks that no process has reported as begun, as brokers
  deliver them again. A task that was already written to a process begins all the same. Here it is kept: its lease does
  not depend on a connection.
* A cold stop happens inside a signal handler, where nothing is read any more, for all of
  ``worker_soft_shutdown_timeout``. What has begun or ended meanwhile is read before tasks are cancelled.
* When several processes die at once, one that dies while the pool sees to the others is found dead before its last
  words are read. A task that it had begun would go to another process.

Source: ``celery.concurrency.asynpool.AsynPool`` (5.7), ``celery.apps.worker.on_cold_shutdown``.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Iterator
from typing import Any

from celery.worker import state

from pgbroker.queue.ledger import Ledger

logger = logging.getLogger(__name__)

#: Attribute of billiard's job that leads to Celery's request.
_REQUEST = "pgbroker_request"


def is_prefork(pool: Any) -> bool:
    """Whether Celery's pool is the one with an event loop over processes: it alone has a flush of its own."""
    return "flush" in vars(pool)


def remember(job: Any, request: Any) -> None:
    """Note which request is behind billiard's job."""
    setattr(job, _REQUEST, request)


def adapt(consumer: Any, ledger: Ledger) -> None:
    """Have a worker's prefork pool keep sight of its tasks."""
    pool = consumer.pool
    pool.flush = _keeping_what_is_written(pool, pool.flush, ledger)
    pool._pool.on_job_process_down = _hearing_last_words(pool._pool, pool._pool.on_job_process_down)
    consumer.cancel_active_requests = _reading_before(consumer, consumer.cancel_active_requests)


def _hearing_last_words(processes: Any, on_job_process_down: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    def listen_before(job: Any, pid_gone: int) -> None:
        process = job._write_to
        if not job._accepted and process is not None and not process._is_alive():
            processes.process_flush_queues(process)
            if job._accepted:
                return  # with the next look it is a task whose process was lost
        on_job_process_down(job, pid_gone)

    return listen_before


def _keeping_what_is_written(pool: Any, flush: Callable[[], None], ledger: Ledger) -> Callable[[], None]:
    def flush_the_rest() -> None:
        written = [job for job in _waiting_jobs(pool) if job._write_to is not None and job._write_to._is_alive()]
        for job in written:
            request = getattr(job, _REQUEST)
            ledger.submit(request.message.delivery_tag)
            state.task_reserved(request)  # Celery has just forgotten it, and could not revoke it any more
            job._accepted = True  # which flush() leaves alone
        try:
            flush()
        finally:
            for job in written:
                job._accepted = job._time_accepted is not None

    return flush_the_rest


def _waiting_jobs(pool: Any) -> Iterator[Any]:
    """Jobs of ours that no process has reported as begun."""
    processes = pool._pool
    jobs = tuple(processes._cache.values()) if processes is not None else ()
    return (job for job in jobs if hasattr(job, _REQUEST) and not job._accepted)


def _reading_before(consumer: Any, cancel_active_requests: Callable[[], None]) -> Callable[[], None]:
    def read_and_cancel() -> None:
        try:
            _read_results(consumer.pool._pool, consumer.hub)
        except Exception:  # on the way out, in a signal handler that may have interrupted the very same reading
            logger.warning("could not read the last results of the pool", exc_info=True)
        cancel_active_requests()

    return read_and_cancel


def _read_results(processes: Any, hub: Any) -> None:
    """Read all that pool processes have written, one message at a time."""
    while True:
        # a message that is half read belongs to the event loop, and nothing after it can be read before
        whole = [
            fd
            for fd in list(processes._fileno_to_outq)
            if hub.readers.get(fd, (None,))[0] == processes.handle_result_event
        ]
        readable, _, _ = select.select(whole, [], [], 0)
        if not readable:
            return
        for fd in readable:
            processes.handle_result_event(fd)
