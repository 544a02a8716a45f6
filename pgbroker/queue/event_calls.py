"""The call that sends Celery's events, many at once."""

from __future__ import annotations

from collections.abc import Sequence

from pgbroker.queue.store import Call, Message

_TYPES = ("text", "integer", "double precision", "text", "text", "text", "text", "bytea")


def post_many(prefix: str, messages: Sequence[Message]) -> Call:
    """Send messages that have neither task ids nor keys. Row: whether any of them led anywhere.

    Args:
        prefix: Of the schema's functions, as :class:`~pgbroker.queue.routing.Routing` has it.
        messages: At least one; all go to the same exchange.
    """
    columns = (
        [message.routing_key for message in messages],
        [message.priority for message in messages],
        [message.ttl_seconds for message in messages],
        [message.content_type for message in messages],
        [message.content_encoding for message in messages],
        [message.headers for message in messages],
        [message.properties for message in messages],
        [message.body for message in messages],
    )
    marks = ", ".join(f"%s::{type}[]" for type in _TYPES)
    return f"select {prefix}post_many(%s, {marks})", (messages[0].exchange, *columns)
