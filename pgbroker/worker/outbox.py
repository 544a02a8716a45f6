"""Tells Celery of ends that the broker made without it: a lost worker, expiry, a revoke, a purged queue.

Whoever ends such a job writes its end into the outbox, in the same transaction; any worker delivers it. Delivering is
what Celery's own worker does when a task fails in its main process: the result backend is told, whichever it is, and by
it the chord, the chained tasks and the errbacks; then the signals and the event. It happens in the main process too,
between two turns of its event loop, a few at a time.

A worker that dies over a delivery has it repeated by another one. So what has succeeded meanwhile is left alone, and
telling the same twice changes nothing but that errbacks run again.
"""

from __future__ import annotations

import collections
import logging
import time
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError, WorkerLostError
from celery.utils.saferepr import saferepr
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

from pgbroker.queue.chores import OUTCOME_TAKEN_SECONDS, Outcome, OutcomeFeed
from pgbroker.transport.envelope import DeliveredMessage
from pgbroker.transport.process import Process
from pgbroker.worker import chord_parts

logger = logging.getLogger(__name__)

#: Longest stretch of the event loop's time for deliveries; the rest waits for its next turn.
TURN_SECONDS = 0.02

#: Without an event loop (gevent, eventlet), seconds between two looks for something to deliver.
LOOK_SECONDS = 0.2

#: An outcome that could not be delivered so often is given up.
MAX_DELIVERIES = 10


class Outbox:
    """Delivers for one worker.

    Args:
        consumer: Celery's ``Consumer``.
        process: Of the broker that it consumes from.
    """

    def __init__(self, consumer: Any, process: Process) -> None:
        self._consumer = consumer
        self._process = process
        self._waiting: collections.deque[Outcome] = collections.deque()
        self._received_at = 0.0
        self._is_asked = False
        self.feed = OutcomeFeed(process.options, self)
        if consumer.hub is None:
            consumer.timer.call_repeatedly(LOOK_SECONDS, self.turn)

    def ask(self) -> None:
        """Have the feed go on as soon as the thread that runs Celery is free."""
        self._is_asked = True
        self._have_turn()

    def receive(self, outcomes: list[Outcome]) -> None:
        """Have these delivered soon, by the thread that runs Celery."""
        self._received_at = time.monotonic()
        self._waiting.extend(outcomes)
        self._have_turn()

    def _have_turn(self) -> None:
        hub = self._consumer.hub
        if hub is not None:
            hub.call_soon(self.turn)
            self._process.ledger.signal()

    def turn(self) -> None:
        """Deliver some."""
        now = time.monotonic()
        if self._waiting and now > self._received_at + OUTCOME_TAKEN_SECONDS / 2:
            self._waiting.clear()  # the thread was not free for long: they are somebody else's again, or soon will be
        told: list[int] = []
        is_asked, self._is_asked = self._is_asked or bool(self._waiting), False
        while self._waiting and time.monotonic() < now + TURN_SECONDS:
            outcome = self._waiting[0]
            if self._deliver(outcome):
                told.append(outcome.outcome_id)
            self._waiting.popleft()
        if told:
            self._process.ledger.say(self.feed.drop(told))
        if self._waiting:
            self._have_turn()
        elif is_asked:
            self.feed.go_on(self._process.keeper)

    def _deliver(self, outcome: Outcome) -> bool:
        """Deliver one. Returns whether that is done with."""
        try:
            _Delivery(self._consumer, outcome).make()
        except Exception as exc:
            if outcome.deliveries < MAX_DELIVERIES:
                logger.warning(
                    "could not tell the result backend that task %s[%s] has ended (%s), trying again: %r",
                    outcome.task_name,
                    outcome.task_id,
                    outcome.detail,
                    exc,
                )
                return False
            logger.exception(
                "gave up telling the result backend that task %s[%s] has ended (%s)",
                outcome.task_name,
                outcome.task_id,
                outcome.detail,
            )
        return True


class _Delivery:
    """One outcome on its way to Celery."""

    def __init__(self, consumer: Any, outcome: Outcome) -> None:
        self.app, self.consumer, self.outcome = consumer.app, consumer, outcome
        self.task: Any = self.app.tasks.get(outcome.task_name)
        self.context = _context_of(outcome, self.app, consumer.hostname)
        self.task_id = self.context.id or outcome.task_id
        self.backend: Any = (self.task or self.app).backend
        ignores = self.context.ignore_result
        if ignores is None:
            ignores = self.task.ignore_result if self.task else False
        self.stores = not ignores or bool(self.task and self.task.store_errors_even_if_ignored)

    def make(self) -> None:
        """Deliver it, unless the task has an end of its own."""
        is_lost = self.outcome.outcome == "LOST"
        known = self._known_state()
        if known == states.SUCCESS or (is_lost and known == states.FAILURE and self.outcome.deliveries == 1):
            # Celery said so itself, before its worker was lost too; it may not have come to its chord
            self._count_part()
            return
        if is_lost:
            self._fail()
        else:
            self._revoke()

    def _count_part(self) -> None:
        if self.context.chord and chord_parts.are_counted_once(self.backend):
            meta = self.backend.get_task_meta(self.task_id, cache=False)
            self.backend.on_chord_part_return(self.context, meta["status"], meta["result"])

    def _known_state(self) -> str | None:
        """The state that the backend knows; ``None`` where there is none to know."""
        if not self.stores:
            return None
        if hasattr(self.backend, "stored_status"):
            return self.backend.stored_status(self.task_id)  # type: ignore[no-any-return]
        uri = getattr(self.backend, "as_uri", None)
        if callable(uri) and str(uri()).startswith(("rpc://", "disabled://")):
            return None  # a look would make a queue (Celery, Request._success_was_stored), or there are no results
        try:
            return self.backend.get_state(self.task_id)  # type: ignore[no-any-return]
        except NotImplementedError:
            return None

    def _fail(self) -> None:
        exc = WorkerLostError(self.outcome.detail)
        self.backend.mark_as_failure(self.task_id, exc, request=self.context, store_result=self.stores)
        try:
            raise exc
        except WorkerLostError:
            einfo = ExceptionInfo()
        if self.task is not None:
            self.task.request_stack.push(self.context)
            try:
                signals.task_failure.send(
                    sender=self.task,
                    task_id=self.task_id,
                    exception=exc,
                    args=self.context.args,
                    kwargs=self.context.kwargs,
                    traceback=einfo.traceback,
                    einfo=einfo,
                )
            finally:
                self.task.request_stack.pop()
        self._send_event("task-failed", exception=saferepr(exc), traceback=einfo.traceback)

    def _revoke(self) -> None:
        # mark_as_revoked() would tell the chord, but neither errbacks nor the rest of a chain
        self.backend.mark_as_failure(
            self.task_id,
            TaskRevokedError(self.outcome.detail),
            request=self.context,
            store_result=self.stores,
            state=states.REVOKED,
        )
        is_expired = self.outcome.outcome == "EXPIRED"
        self._send_event("task-revoked", terminated=False, signum=None, expired=is_expired)
        if self.task is not None:
            signals.task_revoked.send(
                sender=self.task, request=self.context, terminated=False, signum=None, expired=is_expired
            )

    def _send_event(self, kind: str, **fields: Any) -> None:
        dispatcher = self.consumer.event_dispatcher
        if dispatcher is not None and dispatcher.enabled and (self.task is None or self.task.send_events):
            dispatcher.send(kind, uuid=self.task_id, **fields)


def _context_of(outcome: Outcome, app: Any, hostname: str) -> Context:
    """What Celery knows of the task. Without a body that can be decoded here, at least what stands in the headers.

    Source: ``celery.worker.request.Request`` (5.7), ``__init__`` and ``_context``.
    """
    headers: dict[str, Any] = loads(outcome.headers)
    properties: dict[str, Any] = loads(outcome.properties) if outcome.properties else {}
    request = {
        **headers,
        "id": headers.get("id") or outcome.task_id,
        "properties": properties,
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
        "hostname": hostname,
        "called_directly": False,
        "delivery_info": {
            "exchange": outcome.exchange or "",
            "routing_key": outcome.routing_key if outcome.exchange else outcome.queue,
            "priority": properties.get("priority"),
            "redelivered": False,
        },
    }
    message = DeliveredMessage(
        body=outcome.body,  # type: ignore[arg-type]
        content_type=outcome.content_type,
        content_encoding=outcome.content_encoding,
        headers=headers,
        accept=prepare_accept_content(app.conf.accept_content),
    )
    try:
        request["args"], request["kwargs"], embed = message.payload
        request.update(embed or {})
    except Exception as exc:
        logger.warning(
            "cannot decode task %s[%s], which has ended (%s): its chord and errbacks are not told: %r",
            outcome.task_name,
            outcome.task_id,
            outcome.detail,
            exc,
        )
    return Context(request)
