"""A job as Celery writes it: task message protocol 2 in JSON, built and read without Celery.

The body is ``[args, kwargs, embed]``, everything else stands in headers; a Celery worker runs what is built here, and
what Celery published in JSON can be read. Nothing is ever unpickled.

Source: Celery, "Message Protocol", version 2; ``celery.app.amqp.AMQP.as_task_v2`` (5.7).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import uuid
from typing import Any, NamedTuple

from pgbroker.queue.store import Message

CONTENT_TYPE = "application/json"
CONTENT_ENCODING = "utf-8"

#: Celery's own limit for the arguments' representation in headers, in characters.
REPR_MAX_LENGTH = 1024

_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_ENCODINGS = frozenset({None, "utf-8", "utf8", "us-ascii", "ascii"})


class Decoded(NamedTuple):
    """The arguments of a call; ``raw`` is the body itself where it cannot be decoded here, else ``None``."""

    args: list[Any]
    kwargs: dict[str, Any]
    raw: bytes | None = None


def build(
    task: str,
    kwargs: dict[str, Any],
    *,
    queue: str,
    priority: int,
    run_after: dt.datetime | float | None = None,
    expires: dt.datetime | float | None = None,
    dedupe_key: str | None = None,
    max_attempts: int = 5,
) -> Message:
    """The message of a call with keyword arguments.

    The time at which it is due stands in the row alone: with an ``eta`` in the headers a worker would wait for it once
    more, by its own clock. A point in time at which it expires stands in the headers too, because a worker looks at it
    before it starts a task that it holds already; one counted from now does not: only the server's clock counts.

    Args:
        task: Name of the task.
        kwargs: Keyword arguments.
        queue: Name of the queue.
        priority: 0 to 9.
        run_after: Point in time (timezone-aware), or seconds from now by the server's clock.
        expires: The same.
        dedupe_key: Key, or ``None``.
        max_attempts: Attempts after which the job is dead.

    Raises:
        TypeError: An argument cannot be written as JSON.
        ValueError: The same, for a value (a circular one, NaN, an infinity) rather than a type.
    """
    task_id = str(uuid.uuid4())
    body = dump_json([[], kwargs, _EMBED]).encode()
    headers: dict[str, Any] = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": expires.astimezone(dt.UTC).isoformat() if isinstance(expires, dt.datetime) else None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": _shorten(repr(kwargs)),
        "origin": f"gen{os.getpid()}@{socket.gethostname()}",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {"correlation_id": task_id, "reply_to": "", "delivery_mode": 2, "priority": priority}
    if dedupe_key is not None:
        properties["dedupe_key"] = dedupe_key  # where a task finds it that is retried
    return Message(
        queue=queue,
        task_id=task_id,
        task_name=task,
        priority=priority,
        run_after=run_after if isinstance(run_after, dt.datetime) else None,
        expires_at=expires if isinstance(expires, dt.datetime) else None,
        delay_seconds=None if isinstance(run_after, dt.datetime) else run_after,
        ttl_seconds=None if isinstance(expires, dt.datetime) else expires,
        dedupe_key=dedupe_key,
        max_attempts=max_attempts,
        content_type=CONTENT_TYPE,
        content_encoding=CONTENT_ENCODING,
        headers=json.dumps(headers),
        properties=json.dumps(properties),
        body=body,
    )


def decode(content_type: str | None, content_encoding: str | None, headers: str | None, body: bytes) -> Decoded:
    """The arguments that a body holds, if it is the uncompressed JSON of protocol 2.

    Values that kombu has tagged (``{"__type__": "datetime", "__value__": ...}``) are left as they are.
    """
    undecoded = Decoded([], {}, body)
    if content_type != CONTENT_TYPE or (content_encoding and content_encoding.lower()) not in _ENCODINGS:
        return undecoded
    try:
        if headers and '"compression"' in headers and json.loads(headers).get("compression"):
            return undecoded
        args, kwargs, _ = json.loads(body.decode())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return undecoded
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return undecoded
    return Decoded(args, kwargs)


def dump_json(value: Any) -> str:
    """The value as JSON that every reader accepts.

    Raises:
        TypeError: A part of it is of a type that JSON has not.
        ValueError: It contains itself, is nested too deeply, or holds NaN or an infinity.
    """
    try:
        return json.dumps(value, allow_nan=False)
    except RecursionError:
        raise ValueError("nested too deeply for JSON") from None


def _shorten(text: str) -> str:
    return text if len(text) <= REPR_MAX_LENGTH else text[: REPR_MAX_LENGTH - 3] + "..."
