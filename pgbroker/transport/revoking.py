"""Reads the remote control messages that revoke tasks, on their way out.

``app.control.revoke`` reaches only workers that are up. The broker sees the broadcast pass and makes it last: what
waits is cancelled, what comes later does not run. A revoke that is addressed to some workers only concerns these, so
it is left to them.

Source: ``kombu.pidbox.Mailbox`` (exchange name and message), ``celery.worker.control`` (commands and arguments).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kombu.utils.json import dumps, loads

from pgbroker.queue.store import storable
from pgbroker.transport.envelope import Envelope

_EXCHANGE_SUFFIX = ".pidbox"
_BY_ID = frozenset({"revoke", "terminate"})
_BY_STAMPS = "revoke_by_stamped_headers"


class Revocation(NamedTuple):
    """What a broadcast revokes: tasks by their ids, or by stamps (header -> texts of the values)."""

    task_ids: list[str]
    stamps: dict[str, list[Any]]


def stamp_values(stamps: Mapping[str, list[Any]]) -> tuple[list[str], list[str]]:
    """Two lists for ``revoke_stamps()``: header and value of each stamp, the values as JSON, as kombu writes headers.

    Left out is what ``jsonb`` cannot hold, NUL and lone surrogates: such a revoke reaches only workers that are up.
    """
    pairs = [(header, dumps(value, ensure_ascii=False)) for header, values in stamps.items() for value in values]
    held = [pair for pair in pairs if all(storable(text) == text and "\\u0000" not in text for text in pair)]
    return [header for header, _ in held], [value for _, value in held]


def read_revocation(exchange: str, message: Envelope) -> Revocation | None:
    """What a message to an exchange revokes; ``None`` if nothing, or if it cannot be read without running code.

    Args:
        exchange: Where the message goes: ``<control_exchange>.pidbox``.
        message: The message; only JSON is read.
    """
    if not exchange.endswith(_EXCHANGE_SUFFIX) or message.content_type != "application/json":
        return None
    if b"revoke" not in message.body and b"terminate" not in message.body:
        return None
    try:
        command = loads(message.body)
        method, arguments = command["method"], command["arguments"]
        if command.get("destination") or command.get("pattern"):
            return None
        if method in _BY_ID:
            ids = [str(task_id) for task_id in _as_list(arguments["task_id"])]
            ids = [task_id for task_id in ids if storable(task_id) == task_id]  # a task with another id is not stored
            return Revocation(ids, {}) if ids else None
        if method == _BY_STAMPS:
            return Revocation([], _read_stamps(arguments["headers"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        pass  # whoever receives it will say what is wrong with it
    return None


def _read_stamps(headers: Any) -> dict[str, list[Any]]:
    """``{header: value or values}``, or ``["header=value", ...]`` as the command line has it."""
    if not isinstance(headers, Mapping):
        headers = dict(entry.split("=", 1) for entry in headers)
    return {str(header): _as_list(values) for header, values in headers.items()}


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
