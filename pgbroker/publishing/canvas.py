"""Refuses dedupe keys where they would break a canvas, before anything is stored.

A key given to a whole group, chord or chain would land on every member, so that all but the first were duplicates
of it; and a member of a chord that is a duplicate never reports to its chord. Celery offers no place to look at a
canvas as a whole before its members are published one by one, so ``apply_async`` of the three classes is wrapped,
once, when ``pgbroker.Task`` is loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from celery import canvas

from pgbroker.errors import DedupeNotSupported

_WRAPPED = "_pgbroker_refuses_keys"


def install() -> None:
    """Wrap the canvas classes; may be called any number of times."""
    for cls, check in ((canvas.group, _check_whole), (canvas._chain, _check_whole), (canvas.chord, _check_chord)):
        if not getattr(cls.apply_async, _WRAPPED, False):
            cls.apply_async = _checked(cls.apply_async, check)  # type: ignore[method-assign]


def _checked(method: Callable[..., Any], check: Callable[[Any, dict[str, Any]], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        check(self, options)
        return method(self, *args, **options)

    setattr(apply_async, _WRAPPED, True)
    return apply_async


def _check_whole(whole: Any, options: dict[str, Any]) -> None:
    if options.get("dedupe_key") is not None or whole.options.get("dedupe_key") is not None:
        kind = type(whole).__name__.lstrip("_")
        raise DedupeNotSupported(
            f"a dedupe key on a whole {kind} is not supported: it would make all its members but one duplicates; "
            "give each task its own key, as in task.s(...).set(dedupe_key=...)"
        )


def _check_chord(chord: Any, options: dict[str, Any]) -> None:
    _check_whole(chord, options)
    seen: set[tuple[str | None, str]] = set()
    for member in _simple_members(chord.tasks):
        key = _key_of(member)
        if key is None:
            continue
        place = (member.options.get("queue"), key)
        if place in seen or _is_held(member, key):
            raise DedupeNotSupported(
                f"chord member {member.task} has the dedupe key {key!r}, which is held already: the duplicate would "
                "never report and the chord would not complete; leave the key out of chord members, or use a group"
            )
        seen.add(place)


def _simple_members(tasks: Any) -> Iterator[Any]:
    """The plain signatures in a header; of a lazy one nothing, since looking at it would consume it."""
    if isinstance(tasks, canvas.group):
        tasks = tasks.tasks
    for task in tasks if isinstance(tasks, list | tuple) else ():
        if isinstance(task, canvas.group):
            yield from _simple_members(task)
        elif isinstance(task, canvas._chain):
            yield from _simple_members(list(task.tasks)[:1])
        elif not isinstance(task, canvas.chord):
            yield task


def _key_of(member: Any) -> str | None:
    key: str | None = member.options.get("dedupe_key")
    if key is None and hasattr(member.type, "dedupe_key_of"):
        key = member.type.dedupe_key_of(tuple(member.args), dict(member.kwargs))
    return key


def _is_held(member: Any, key: str) -> bool:
    """Whether a live job of the member's queue holds the key right now."""
    from pgbroker.queue.job_calls import job_calls_for
    from pgbroker.transport.transport import Transport

    app = member.app
    with app.connection_for_write() as connection:
        if not isinstance(connection.transport, Transport):
            return False
        link = connection.connection
        queue = app.amqp.router.route(dict(member.options), member.task).get("queue")
        call = job_calls_for(link.options.schema).find_active(key, getattr(queue, "name", queue))
        return bool(link.process.pool.query(*call))
