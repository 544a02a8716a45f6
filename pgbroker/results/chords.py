"""Chords without a task that polls: whoever returns the last part publishes the body.

A chord is a set of parts, one for each member and place in the header, so a member that runs twice counts once. The
part that completes the set is never stored alone: one transaction holds the member's result, the end of its job, the
end of the chord and the messages of the body. Whatever dies before its commit leaves a chord that lacks one part, and
a job that is run again or ends as lost, which is a part, too.

Where jobs and results lie in different databases the body is published first, and the chord ended after that.

Source: ``celery.backends.redis.RedisBackend`` (5.7), whose order of results, errors and bodies are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import states
from celery.backends.base import Backend, _create_chord_error_with_cause  # type: ignore[attr-defined]
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result
from celery.utils.functional import _regen  # type: ignore[attr-defined]
from kombu.utils.encoding import bytes_to_str, ensure_bytes

from pgbroker import errors
from pgbroker.queue.store import Call
from pgbroker.results.chord_store import ChordStore, Part, TaskEnd
from pgbroker.results.collecting import collect

logger = logging.getLogger(__name__)

#: How often a chord may be found to be complete and then not to be, because members join it meanwhile.
MAX_ROUNDS = 20


class ChordBackend(Backend):
    """The side of the result backend that keeps chords."""

    # of Celery's base class, whose stubs leave them out
    app: Any
    expires: float | None
    _ensure_retryable: Any
    chord_error_from_stack: Any
    exception_to_python: Any

    #: Where chords are kept; set by the backend.
    chords: ChordStore

    #: For whoever tells of ends: a part may be returned again, and its result need not be stored.
    counts_parts_once = True

    @property
    def chord_expires(self) -> float | None:
        """How long a chord is kept after its last part, in seconds; ``None`` or 0: for ever."""
        expires = self.app.conf.get("result_chord_expires")
        return self.expires if expires is None else self.prepare_expires(expires)

    # -- what canvas asks for -----------------------------------------------------------------------

    def apply_chord(self, header_result_args: Any, body: Any, **_: Any) -> None:
        """See Celery's: the header is about to be published."""
        self.ensure_chords_allowed()
        group_id, results = header_result_args
        structure = None
        if not isinstance(results, _regen) and any(isinstance(result, GroupResult) for result in results):
            # the body gets the results as they were nested, not a flat list
            structure = ensure_bytes(self.encode(self.app.GroupResult(group_id, results).as_tuple()))
        self._ensure_retryable(
            self.chords.open,
            _key(group_id),
            structure=structure,
            body=self._encoded_body(body),
            keep_seconds=self.chord_expires,
        )

    def set_chord_size(self, group_id: Any, chord_size: int) -> None:
        """See Celery's: called before the last member is published, or later."""
        key = _key(group_id)
        is_complete = self._ensure_retryable(self.chords.set_size, key, chord_size, keep_seconds=self.chord_expires)
        if is_complete and (body := self.chords.read(key).body) is not None:
            self._complete(key, self.decode(body), None, None)

    def add_to_chord(self, chord_id: Any, result: Any) -> None:
        """See Celery's: one more member joins while the chord runs."""
        self._ensure_retryable(self.chords.add, _key(chord_id), keep_seconds=self.chord_expires)

    def _encoded_body(self, body: Any) -> bytes | None:
        try:
            return ensure_bytes(self.encode(body))
        except Exception:
            # the members carry it, too, in the serializer of tasks; this copy is for a size that comes last
            return None

    # -- parts --------------------------------------------------------------------------------------

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_: Any) -> None:
        """See Celery's: a member has ended. The same member may be told of any number of times."""
        if request.group and request.id:
            self._ensure_retryable(self.return_part, request, state, result, TaskEnd(state))

    def return_part(self, request: Any, state: str, result: Any, end: TaskEnd) -> None:
        """Count a member, once; publish the body if it was the last.

        Args:
            request: Celery's request of the member's task.
            state: How it ended.
            result: What it returned or raised.
            end: What is written of that end in the same transaction.
        """
        key = _key(request.group)
        content = self.encode([1, _key(request.id), state, self.encode_result(result, state)])
        part = Part(_key(request.id), request.group_index, ensure_bytes(content))
        for _ in range(MAX_ROUNDS):
            if not self.chords.keep(key, part, end, keep_seconds=self.chord_expires):
                return
            if self._complete(key, request.chord, part, end):
                return
        raise errors.DatabaseError(f"chord {key} was found complete and then not, {MAX_ROUNDS} times")

    def _complete(self, key: str, callback: Any, part: Part | None, end: TaskEnd | None) -> bool:
        """Publish the body and end the chord. Returns whether it ended; else somebody else ended it, or it grew."""
        callback = maybe_signature(callback, app=self.app)
        publishes: list[Call] = []
        try:
            values = self._attempt("Join", lambda: self._values(key, part))
            with collect(self.chords.options) as publishes:
                self._attempt("Callback", lambda: self.app.amqp._retry_publish(callback.delay, values))
            try:
                return self.chords.finish(key, part, end, publishes)
            except errors.DatabaseUnreachable:
                raise
            except errors.PgBrokerError as exc:
                raise _chord_error("Callback", exc) from exc
        except ChordError as exc:
            logger.exception("Chord %r raised: %r", key, exc)
            # told first: if this process dies over it, it is told once more rather than never
            self.chord_error_from_stack(callback, exc)
            return self.chords.finish(key, part, end, ())

    def _attempt(self, what: str, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except (ChordError, errors.DatabaseUnreachable):
            raise
        except Exception as exc:
            raise _chord_error(what, exc) from exc

    # -- what the body gets -------------------------------------------------------------------------

    def _values(self, key: str, last: Part | None) -> list[Any]:
        """The results of all members, in the order and the nesting of the header.

        Raises:
            ChordError: A member failed; the first of the header that did.
        """
        stored = self.chords.read(key)
        parts = stored.parts
        if last is not None and all(last.key != part.key for part in parts):
            parts = sorted([*parts, last], key=lambda part: part.key[1])
        values = [(part.task_id, self._value(part)) for part in parts]
        if stored.structure is None:
            return [value for _, value in values]
        _, children = self.decode(stored.structure)
        return [self._nested(child, dict(values)) for child in children]

    def _value(self, part: Part) -> Any:
        _, task_id, state, value = self.decode(part.content)
        if state in states.EXCEPTION_STATES:
            value = self.exception_to_python(value)
        if state in states.PROPAGATE_STATES:
            raise _create_chord_error_with_cause(message=f"Dependency {task_id} raised {value!r}", original_exc=value)
        return value

    def _nested(self, node: Any, values: dict[str, Any]) -> Any:
        """``node`` is ``((id, parent), None)`` of a task, or ``((id, parent), children)`` of a group."""
        (result_id, _), children = node
        if children is not None:
            return [self._nested(child, values) for child in children]
        if result_id in values:
            return values[result_id]
        with allow_join_result():  # returned under another id, so its result has to be there
            return self.app.AsyncResult(result_id).get(timeout=self.app.conf.result_chord_join_timeout)


def _chord_error(what: str, exc: Exception) -> ChordError:
    error: ChordError = _create_chord_error_with_cause(message=f"{what} error: {exc!r}", original_exc=exc)
    return error


def _key(name: Any) -> str:
    return str(bytes_to_str(name))
