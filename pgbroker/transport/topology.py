"""Exchanges, queues and bindings as kombu declares them, and which queues hold jobs."""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple

from kombu.utils.json import dumps

logger = logging.getLogger(__name__)

#: Queue arguments that mean something here; others are accepted and logged once.
KNOWN_QUEUE_ARGUMENTS = frozenset(
    {
        "x-expires",
        "x-message-ttl",
        "x-max-length",
        "x-max-priority",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
    }
)

#: Longest name in bytes, as AMQP has it.
MAX_NAME_BYTES = 255

_logged: set[str] = set()


class QueueTraits(NamedTuple):
    """What a queue's declaration asks for. Times are seconds."""

    is_transient: bool
    arguments: str | None
    expires_seconds: float | None
    ttl_seconds: float | None
    max_length: int | None


def traits_of(queue: str, arguments: dict[str, Any] | None, *, exclusive: bool, auto_delete: bool) -> QueueTraits:
    """Read a queue declaration.

    A queue that is exclusive, auto-delete or has ``x-expires`` is transient: its messages are no jobs.
    """
    arguments = arguments or {}
    for name in arguments.keys() - KNOWN_QUEUE_ARGUMENTS - _logged:
        _logged.add(name)
        logger.info("queue argument %r (first seen on %r) has no meaning for pgbroker and is ignored", name, queue)
    expires = _milliseconds(queue, arguments, "x-expires")
    max_length = arguments.get("x-max-length")
    return QueueTraits(
        is_transient=bool(exclusive or auto_delete or expires is not None),
        arguments=dumps(arguments) if arguments else None,
        expires_seconds=expires,
        ttl_seconds=_milliseconds(queue, arguments, "x-message-ttl"),
        max_length=int(max_length) if max_length is not None else None,
    )


def _milliseconds(queue: str, arguments: dict[str, Any], name: str) -> float | None:
    value = arguments.get(name)
    if value is None:
        return None
    try:
        return float(value) / 1000
    except (TypeError, ValueError):
        raise ValueError(f"queue {queue!r}: {name} must be a number of milliseconds, not {value!r}") from None


def checked_name(name: Any, kind: str) -> str:
    """The name of a queue or exchange as text; ValueError if it cannot be one."""
    text = str(name)
    if "\x00" in text or len(text.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise ValueError(f"{kind} name {text[:80]!r}: at most {MAX_NAME_BYTES} bytes and no NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{kind} name {text[:80]!r} is not valid Unicode") from None
    return text


def topic_pattern(routing_key: str) -> str:
    """A topic binding's key as an anchored regular expression: ``*`` is one word, ``#`` any number of words.

    Source: AMQP 0-9-1, section 3.1.3.3, "The topic exchange type".
    """
    words = routing_key.split(".")
    pattern = ""
    for at, word in enumerate(words):
        is_first = at == 0
        if word == "#":
            pattern += r"(?:[^.]*(?:\.[^.]*)*)?" if is_first else r"(?:\.[^.]*)*"
        else:
            part = "[^.]*" if word == "*" else _escaped(word)
            dot = "" if is_first else (r"(?:^|\.)" if all(w == "#" for w in words[:at]) else r"\.")
            pattern += dot + part
    return f"^{pattern}$"


def _escaped(word: str) -> str:
    """The word as a literal in both Python's and PostgreSQL's regular expressions."""
    return (
        re.sub(r"([^\w])", r"\\\1", word, flags=re.ASCII)
        if word.isascii()
        else re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", word)
    )
