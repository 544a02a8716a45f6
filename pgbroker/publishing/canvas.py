"""Refuses dedupe keys where they would break a canvas, before anything is stored.

A key given to a whole group, chord or chain would land on every member, so that all but the first were duplicates
of it; and a member of a chord that is a duplicate never reports to its chord. Celery offers no place to look at a
canvas as a whole before its members are published one by one, so ``apply_async`` of the three classes is wrapped,
once, when ``pgbroker.Task`` is loaded. All that lies inside is looked at from the outermost one.
"""

from __future__ import annotations

import functools
from collections import UserList
from collections.abc import Callable, Iterator
from typing import Any

from celery import canvas

from pgbroker.errors import DedupeNotSupported

_WRAPPED = "_pgbroker_refuses_keys"

_CANVASES = (canvas.group, canvas._chain, canvas.chord)


def install() -> None:
    """Wrap the canvas classes; may be called any number of times."""
    for cls in _CANVASES:
        if not getattr(cls.apply_async, _WRAPPED, False):
            cls.apply_async = _checked(cls.apply_async)  # type: ignore[method-assign]


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def apply_async(self: Any, args: Any = None, *more: Any, **options: Any) -> Any:
        _check_key(self, options)
        for part, is_next in _parts(self, True):
            if isinstance(part, _CANVASES):
                _check_key(part, part.options)
            if isinstance(part, canvas.chord):
                _check_header(part, is_next, bool(args))
        return method(self, args, *more, **options)

    setattr(apply_async, _WRAPPED, True)
    return apply_async


def _check_key(whole: Any, options: dict[str, Any]) -> None:
    if options.get("dedupe_key") is not None:
        kind = type(whole).__name__.lstrip("_")
        raise DedupeNotSupported(
            f"a dedupe key on a whole {kind} is not supported: it would make all its members but one duplicates; "
            "give each task its own key, as in task.s(...).set(dedupe_key=...)"
        )


def _check_header(chord: Any, is_next: bool, more_arguments: bool) -> None:
    seen: set[tuple[str | None, str]] = set()
    for whole in _header(chord):
        for member, is_first in _parts(whole, is_next):
            if isinstance(member, _CANVASES):
                continue
            knows_arguments = member.immutable or (is_first and not more_arguments)
            key = member.options.get("dedupe_key") or (_own_key(member) if knows_arguments else None)
            if key is None:
                continue
            place = (member.options.get("queue"), key)
            if place in seen or (is_first and _is_held(member, key)):
                raise DedupeNotSupported(
                    f"chord member {member.task} has the dedupe key {key!r}, which is held already: the duplicate "
                    "would never report and the chord would not complete; leave the key out of chord members, or use a "
                    "group"
                )
            seen.add(place)


def _parts(whole: Any, is_next: bool) -> Iterator[tuple[Any, bool]]:
    """A signature and all that lie in it, each with whether it is published together with the outermost one.

    Of a lazy group (Celery's ``regen``) nothing, since it may be too long to be kept in memory; its members are looked
    at one by one when their turn comes. A header has to be counted anyway.
    """
    yield whole, is_next
    if isinstance(whole, canvas.chord):
        for part in _header(whole):
            yield from _parts(part, is_next)
        if whole.body is not None:
            yield from _parts(_signature(whole.body, whole), False)
    elif isinstance(whole, canvas._chain):
        for number, part in enumerate(whole.tasks):
            yield from _parts(_signature(part, whole), is_next and number == 0)
    elif isinstance(whole, canvas.group) and not isinstance(whole.tasks, UserList):
        for part in whole.tasks:
            yield from _parts(_signature(part, whole), is_next)


def _header(chord: Any) -> Iterator[Any]:
    tasks = chord.tasks
    for part in tasks.tasks if isinstance(tasks, canvas.group) else tasks:
        yield _signature(part, chord)


def _signature(part: Any, whole: Any) -> Any:
    return part if isinstance(part, canvas.Signature) else canvas.maybe_signature(part, app=whole.app)


def _own_key(member: Any) -> str | None:
    try:
        task = member.type
    except KeyError:  # known here by its name alone
        return None
    if not hasattr(task, "dedupe_key_of"):
        return None
    key: str | None = task.dedupe_key_of(tuple(member.args), dict(member.kwargs))
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
