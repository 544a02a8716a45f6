"""Turns what became of a task into the end of its row.

Celery calls ``on_accepted`` when a pool process takes the task, and one of ``on_success``, ``on_failure`` and
``on_timeout`` once per run, in the worker's main process, on every pool, before a late ack. They are wrapped on the
request instance: Celery makes its own subclass of ``Request``, so overriding them in a class has no effect.

The first word about an end counts; pairs that Celery reports (a hard limit is a failure and then a time-out, a
termination a revocation and then a failure) need no sorting, since the ledger forgets the job with the first one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback  # type: ignore[attr-defined]
from celery import exceptions
from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.app.task import Context
from celery.exceptions import Ignore, Retry
from celery.worker.request import Request

from pgbroker.queue.ledger import Ledger, Tag
from pgbroker.transport.channel import Channel
from pgbroker.worker import chord_parts, prefork, strict_start

logger = logging.getLogger(__name__)

#: Longest ``last_error`` that is stored, in characters: the end of a traceback says most.
MAX_ERROR_CHARS = 20_000


def follow(request: Request, channel: Channel) -> None:
    """Let the row of this request's job follow its task."""
    tag: Tag = request.message.delivery_tag
    ledger = channel.process.ledger
    if not ledger.follow(tag):
        return
    seen_by_task: dict[str, Any] = request.delivery_info  # type: ignore[assignment]
    for name in ("attempts", "job_id"):
        seen_by_task[name] = request.message.delivery_info[name]
    seen_by_task["claim"] = tag.claim  # by which the result backend may end the job
    _Follower(request, tag, ledger, channel.options.max_requeues).wrap()
    if strict_start.is_wanted(request, channel.options):
        strict_start.demand(request, channel.options, ledger)
    hand_to_pool = request.execute_using_pool
    if channel.process.pool_keeps_tasks:
        hand_to_pool = _before(hand_to_pool, lambda *_, **__: ledger.submit(tag))
    else:
        hand_to_pool = _remembered(hand_to_pool, request)
    request.execute_using_pool = hand_to_pool  # type: ignore[method-assign]


class _Follower:
    """Follows one request."""

    __slots__ = ("failure", "is_broken_off", "ledger", "loss", "max_requeues", "request", "tag")

    def __init__(self, request: Any, tag: Tag, ledger: Ledger, max_requeues: int | None) -> None:
        self.request, self.tag, self.ledger, self.max_requeues = request, tag, ledger, max_requeues
        #: Why the task broke off, while Celery makes up its mind about it.
        self.loss: str | None = None
        #: The failure and its description, in that while.
        self.failure: tuple[BaseException, str] | None = None
        #: Celery itself has ended the run, so what the pool says of it is no outcome.
        self.is_broken_off = False

    def wrap(self) -> None:
        request = self.request
        request.on_accepted = _before(request.on_accepted, self._accepted)
        request.on_success = _after(self._unless_exited(request.on_success), self._succeeded)
        request.on_failure = _after(_before(request.on_failure, self._failing), self._failed)
        request.on_timeout = _after(_before(request.on_timeout, self._timing_out), self._timed_out)
        request.reject = _before(request.reject, self._rejected)
        request._announce_revoked = _after(request._announce_revoked, self._revoked)
        if hasattr(request, "_retry_worker_lost"):  # Celery 5.7
            request._success_was_stored = self._noting(request._success_was_stored, "SUCCESS")
            request._retry_worker_lost = self._noting(self._as_the_task(request._retry_worker_lost), "RETRY")
        request._announce_cancelled = _after(request._announce_cancelled, self._cancelled)
        request.terminate = self._breaking_off(request.terminate)
        request.cancel = self._breaking_off(request.cancel)

    def _accepted(self, *_: Any) -> None:
        self.ledger.start(self.tag, early=not self.request.task.acks_late)

    def _succeeded(self, failed__retval__runtime: Any, **_: Any) -> None:
        # a failure has been through on_failure by now; a killed greenlet looks like a success
        if not _is_exit(failed__retval__runtime) and not failed__retval__runtime[0] and not self.is_broken_off:
            self.ledger.end(self.tag, "SUCCESS")

    def _failing(self, exc_info: Any, *_: Any, **__: Any) -> None:
        exc = _exception(exc_info)
        if not isinstance(exc, exceptions.Reject):
            self.loss, self.failure = f"{type(exc).__name__}: {exc}", (exc, _describe(exc, exc_info.traceback))
            return
        requeue, reason = exc.requeue, f"Reject: {exc.reason}"  # type: ignore[attr-defined]
        # also after an early ack, where Celery itself has nothing left to reject
        if requeue:
            self.ledger.put_back(self.tag, reason=reason, max_requeues=self.max_requeues)
        else:
            self.ledger.bury(self.tag, reason)
            # Celery tells nobody, and the task's chord would wait for it for ever
            request = self.request
            chord_parts.fail(request.task.backend, request.name, request.id, exc, lambda: request._context)

    def _failed(self, exc_info: Any, *_: Any, **__: Any) -> None:
        exc = _exception(exc_info)
        if isinstance(exc, Retry):
            self.ledger.end(self.tag, "RETRY")
        elif isinstance(exc, Ignore):
            self.ledger.end(self.tag, "IGNORED")
        elif self._is_expected(exc) or not (self.is_broken_off or self._is_left_to_run_again()):
            self._fail(exc, _describe(exc, exc_info.traceback))

    def _fail(self, exc: BaseException, reason: str) -> None:
        if self._is_expected(exc):
            self.ledger.end(self.tag, "FAILURE")
        else:
            self.ledger.bury(self.tag, reason)

    def _rejected(self, requeue: bool = False) -> None:
        if not requeue:
            if self.failure is not None:
                # without an event loop the rejection itself comes next, and knows less of the reason
                self._fail(*self.failure)
            return
        if self.loss is not None and not self.ledger.is_stopping():
            # a lost process, or a time limit: other brokers would go round for ever
            self.ledger.lose(self.tag, self.loss)
        else:
            self.ledger.put_back(self.tag, reason="given back by the worker", max_requeues=self.max_requeues)

    def _timing_out(self, soft: bool, timeout: float) -> None:
        if not soft:
            self.loss = _over_limit(timeout)

    def _timed_out(self, soft: bool, timeout: float) -> None:
        if not soft and not self._is_left_to_run_again():
            self._fail(exceptions.TimeLimitExceeded(timeout), _over_limit(timeout))

    def _revoked(self, *_: Any) -> None:
        self.ledger.end(self.tag, "REVOKED")

    def _breaking_off(self, end: Callable[..., None]) -> Callable[..., None]:
        """Wrap what ends a running task: a revocation with terminate, a cold stop, a lost connection."""

        def break_off(*args: Any, **kwargs: Any) -> None:
            self.is_broken_off = True
            try:
                end(*args, **kwargs)
            except NotImplementedError as exc:
                # threads and solo: raised into the middle of a signal handler it would end up inside the task
                self.is_broken_off = False
                logger.warning("cannot end task %s[%s]: %s; it runs on", self.request.name, self.request.id, exc)
            except Exception as exc:
                # gevent runs signal handlers in its hub: it kills the greenlet, and refuses to wait for its end
                if type(exc).__name__ != "BlockingSwitchOutError":
                    raise
                self.ledger.stop(self.tag)

        return break_off

    def _cancelled(self, *_: Any, **__: Any) -> None:
        self.ledger.stop(self.tag)

    def _unless_exited(self, on_success: Callable[..., None]) -> Callable[..., None]:
        """All pools but prefork report a task that raised ``SystemExit`` as a success, though they mean a loss."""

        def succeeded_or_exited(outcome: Any, **kwargs: Any) -> None:
            if _is_exit(outcome):
                self.request.on_failure(outcome)
            else:
                on_success(outcome, **kwargs)

        return succeeded_or_exited

    def _noting(self, question: Callable[..., Any], state: str) -> Callable[..., Any]:
        """Wrap what Celery asks itself when a pool process was lost: a yes is the end of the job."""

        def ask(*args: Any) -> Any:
            answer = question(*args)
            if answer:
                self.ledger.end(self.tag, state)
            return answer

        return ask

    def _as_the_task(self, retry: Callable[..., bool]) -> Callable[..., bool]:
        """Have the retry of a lost task published as by the task itself, so that its dedupe key passes on."""

        def publish(*args: Any) -> bool:
            task = self.request.task
            _task_stack.push(task)
            task.request_stack.push(Context(vars(self.request._context), called_directly=False))
            try:
                return retry(*args)
            finally:
                task.request_stack.pop()
                _task_stack.pop()

        return publish

    def _is_expected(self, exc: BaseException) -> bool:
        task = self.request.task
        return not getattr(task, "dead_letter", True) or (bool(task.throws) and isinstance(exc, task.throws))

    def _is_left_to_run_again(self) -> bool:
        """Celery left the message unacknowledged (it rejected it with requeue, or will see it redelivered)."""
        return bool(self.request.task.acks_late) and not self.request.acknowledged


def _is_exit(outcome: Any) -> bool:
    return isinstance(outcome, ExceptionInfo)


def _over_limit(timeout: float) -> str:
    return f"TimeLimitExceeded: hard time limit of {timeout:g} s"


def _exception(exc_info: Any) -> Any:
    exc = exc_info.exception
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc


def _remembered(hand_to_pool: Callable[..., Any], request: Any) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        job = hand_to_pool(*args, **kwargs)
        prefork.remember(job, request)
        return job

    return wrapped


def _before(method: Callable[..., Any], first: Callable[..., None]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        return method(*args, **kwargs)

    return wrapped


def _after(method: Callable[..., Any], then: Callable[..., None]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:
            then(*args, **kwargs)

    return wrapped


def _describe(exc: BaseException, traceback: Any) -> str:
    """Type, text and traceback of a failure, as ``last_error`` shows them."""
    head = f"{type(exc).__name__}: {exc}"
    trace = str(traceback or "")
    return f"{head}\n{trace[-MAX_ERROR_CHARS:]}" if trace else head
