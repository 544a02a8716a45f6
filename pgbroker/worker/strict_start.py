"""The option ``strict_start``: a task that is acknowledged before it runs begins only when its start is committed.

Without it the worker's main process notes a start when its pool reports it, some milliseconds after the task began.
With it, whoever runs the task (a pool process, a thread, a greenlet) first records the start itself and waits for the
commit. If the claim is not held any more, the task does not run: somebody else has the job, or will. If the server does
not answer in time, it does not run either, and the job goes back.

What is run is Celery's own tracing function with ours before it. It travels to pool processes with each task, so
nothing has to be installed in them, however they were started; and before it nothing of the task has happened: no
signal, no ``before_start``, no STARTED.

Source: ``celery.worker.request.create_request_cls``, ``celery.app.trace.fast_trace_task`` (5.7).
"""

from __future__ import annotations

import functools
import logging
import pickle
import time
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.app.trace import fast_trace_task, trace_task_ret
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request, create_request_cls  # type: ignore[attr-defined]

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres.pool import pool_for
from pgbroker.queue.ledger import Ledger, Tag
from pgbroker.queue.store import store_for

logger = logging.getLogger(__name__)

#: How long the server may take to record a start before the job goes back, in seconds. An attempt to connect that has
#: begun by then is not broken off (``connect_timeout``).
PATIENCE_SECONDS = 5.0

#: Pause between two attempts, in seconds.
PAUSE_SECONDS = 0.2


class ClaimLost(Ignore):
    """The job was taken away before its task began here."""


class StartNotRecorded(Reject):
    """The server did not answer, so the task did not begin; whether its start is recorded is not known."""


#: What the worker's main process is told of a task that did not begin.
_NOT_BEGUN = (ClaimLost, StartNotRecorded)


def is_wanted(request: Request, options: Options) -> bool:
    """Whether the start of this request's task has to be committed before it runs."""
    return options.strict_start and not request.task.acks_late


def demand(request: Any, options: Options, ledger: Ledger) -> None:
    """Let this request's task begin only when its start is committed. The row follows the request already.

    Its first words about a start and an end count, so what is said here comes before what is said of other tasks.
    """
    tag: Tag = request.message.delivery_tag
    accept, fail, task = request.on_accepted, request.on_failure, request.task

    def on_accepted(*args: Any) -> None:
        ledger.start(tag, early=True, is_recorded=True)
        accept(*args)

    def on_failure(exc_info: Any, *args: Any, **kwargs: Any) -> None:
        exc = exc_info.exception
        exc = exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
        if isinstance(exc, _NOT_BEGUN):
            ledger.not_begun(tag, may_be_recorded=isinstance(exc, StartNotRecorded))
        fail(exc_info, *args, **kwargs)

    def execute_using_pool(pool: Any, **kwargs: Any) -> Any:
        limits = (task.time_limit, task.soft_time_limit)  # remote control may change them
        return _request_class(task, pool, options, limits).execute_using_pool(request, pool, **kwargs)

    request.on_accepted, request.on_failure = on_accepted, on_failure
    request.execute_using_pool = execute_using_pool


@functools.lru_cache(maxsize=4096)
def _request_class(task: Any, pool: Any, options: Options, limits: tuple[float | None, float | None]) -> Any:
    """Celery's own class of requests for the task, but for what it gives to the pool to run."""
    trace = fast_trace_task if task.app.use_fast_trace_task else trace_task_ret
    strict = StrictTrace(options, trace, limits[0])
    return create_request_cls(Request, task, pool, None, None, trace=strict, app=task.app)


class StrictTrace:
    """Runs tasks as ``trace`` does, once their starts are committed.

    Args:
        options: Of the broker that the jobs come from.
        trace: Celery's function that runs a task.
        time_limit: The hard limit of tasks whose message sets none, in seconds.
    """

    def __init__(self, options: Options, trace: Callable[..., Any], time_limit: float | None) -> None:
        self._options, self._trace, self._time_limit = options, trace, time_limit
        self._parts = pickle.dumps((options, trace, time_limit))

    def __repr__(self) -> str:  # Celery logs what it gives to a pool
        return f"<{type(self).__name__} of {self._trace.__name__}>"

    def __reduce__(self) -> tuple[Callable[..., StrictTrace], tuple[bytes]]:
        return _unpickled, (self._parts,)

    def __call__(self, name: str, task_id: str, request: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run a task. Returns what Celery's function returns."""
        try:
            self._begin(request)
        except _NOT_BEGUN as exc:
            logger.warning("task %s[%s] has not begun: %s", name, task_id, exc.args[0])
            return 1, ExceptionInfo(internal=True), None  # as Celery tells of tasks that raise Ignore or Reject
        return self._trace(name, task_id, request, *args, **kwargs)

    def _begin(self, request: dict[str, Any]) -> None:
        job_id, claim = request["delivery_info"]["job_id"], request["delivery_info"]["claim"]
        limit, _ = request.get("timelimit") or (None, None)
        limit = limit or self._time_limit
        patience = min(PATIENCE_SECONDS, limit / 2) if limit else PATIENCE_SECONDS
        try:
            may_run = _record(self._options, job_id, claim, patience)
        except Exception as exc:  # also a soft time limit
            raise StartNotRecorded(f"its start could not be recorded: {exc!r}", requeue=True) from None
        if not may_run:
            raise ClaimLost(f"claim {claim} of job {job_id} was lost")


@functools.cache
def _unpickled(parts: bytes) -> StrictTrace:
    return StrictTrace(*pickle.loads(parts))


def _record(options: Options, job_id: int, claim: int, patience: float) -> bool:
    """Have the start committed. Returns whether the task may run."""
    pool, store = pool_for(options), store_for(options.schema)
    deadline = time.monotonic() + patience
    is_repeated = False
    while True:
        left = max(PAUSE_SECONDS, deadline - time.monotonic())
        try:
            with pool.lend(left) as session:
                call = store.start_job(job_id, claim, is_repeated=is_repeated)
                return bool(session.query(*call, timeout=left)[0][0])
        except errors.PgBrokerError:
            if time.monotonic() + PAUSE_SECONDS >= deadline:
                raise
        is_repeated = True  # the statement may have been carried out all the same
        time.sleep(PAUSE_SECONDS)
