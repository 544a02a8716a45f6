"""Exchanges, queues and bindings as kombu declares them, and which queues hold jobs."""

from __future__ import annotations

import logging
import re
from typing import Any

from kombu.utils.json import dumps

from pgbroker.queue.routing import QueueTraits

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

EXCHANGE_TYPES = frozenset({"direct", "topic", "fanout", "headers"})

#: Longest name in bytes, as AMQP has it.
MAX_NAME_BYTES = 255

_logged: set[str] = set()


def traits_of(
    queue: str, arguments: dict[str, Any] | None, *, owner: str | None = None, auto_delete: bool = False
) -> QueueTraits:
    """Read a queue declaration.

    A queue that is exclusive, auto-delete or has ``x-expires`` is transient: its messages are no jobs.

    Args:
        queue: Its name.
        arguments: What kombu calls ``queue_arguments``.
        owner: For an exclusive queue, the process that owns it.
        auto_delete: It goes with its last consumer.

    Raises:
        ValueError: An argument that has a meaning here has a value that has none.
    """
    arguments = arguments or {}
    expires = _number(queue, arguments, "x-expires", "a number of milliseconds", least=1)
    ttl = _number(queue, arguments, "x-message-ttl", "a number of milliseconds")
    is_transient = bool(owner is not None or auto_delete or expires is not None)
    meaningless = arguments.keys() - KNOWN_QUEUE_ARGUMENTS
    for name in sorted(meaningless if is_transient else meaningless | (arguments.keys() & {"x-max-length"})):
        _log_once(name, queue, "for pgbroker" if name in meaningless else "for a queue that holds jobs")
    return QueueTraits(
        arguments=canonical(arguments),
        is_transient=is_transient,
        owner=owner,
        auto_delete=auto_delete,
        expires_seconds=None if expires is None else expires / 1000,
        ttl_seconds=None if ttl is None else ttl / 1000,
        max_length=_number(queue, arguments, "x-max-length", "a number of messages"),
        max_priority=_number(queue, arguments, "x-max-priority", "a number", most=255),
        dead_letter_exchange=_name(arguments, "x-dead-letter-exchange", "exchange"),
        dead_letter_key=_name(arguments, "x-dead-letter-routing-key", "routing key"),
    )


def canonical(arguments: dict[str, Any] | None) -> str | None:
    """Arguments of a queue or binding as the text that is stored and compared; ``None`` for none."""
    return dumps(arguments, sort_keys=True) if arguments else None


def _log_once(argument: str, queue: str, where: str) -> None:
    if argument not in _logged:
        _logged.add(argument)
        logger.info("queue argument %r (first seen on %r) has no meaning %s and is ignored", argument, queue, where)


def _number(
    queue: str, arguments: dict[str, Any], name: str, kind: str, *, least: int = 0, most: int = 2**31 - 1
) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not least <= number <= most:
        raise ValueError(f"queue {queue!r}: {name} must be {kind} from {least} to {most}, not {value!r}")
    return number


def _name(arguments: dict[str, Any], name: str, kind: str) -> str | None:
    value = arguments.get(name)
    return None if value is None else checked_name(value, kind)


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
