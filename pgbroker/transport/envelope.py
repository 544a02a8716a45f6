"""Between kombu's message and the row: what is stored in which column, and how it is read again.

Bodies are stored as they are, any bytes; headers and properties are JSON texts beside them. What the queue itself
needs (ETA, expiry, priority, dedupe key) is read out of headers and properties once, at publish.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from kombu.transport.base import Message as KombuMessage
from kombu.utils.json import dumps, loads

from pgbroker.errors import MessageTooLarge
from pgbroker.queue.ledger import Tag
from pgbroker.queue.routing import Mail
from pgbroker.queue.store import Claimed, Message, storable

#: Where the body is text, kombu names its encoding; anything else is bytes already.
_TEXT = "utf-8"

_HIGHEST_PRIORITY = 9

#: PostgreSQL takes statements and gives back rows of less than 1 GiB, and a body travels in hexadecimal digits.
MAX_MESSAGE_BYTES = 256 * 1024 * 1024


class Envelope:
    """A message that kombu has prepared and not yet published."""

    __slots__ = ("body", "content_encoding", "content_type", "headers", "priority", "properties")

    def __init__(
        self,
        body: bytes | str,
        priority: int | None,
        content_type: str | None,
        content_encoding: str | None,
        headers: dict[str, Any] | None,
        properties: dict[str, Any] | None,
    ) -> None:
        if isinstance(body, str):
            body = body.encode(_text_encoding(content_encoding), "surrogatepass")
        self.body = bytes(body)
        self.priority = clamp_priority(priority)
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.headers = headers or {}
        self.properties = {key: value for key, value in (properties or {}).items() if value is not None}

    def address(self, queue: str, exchange: str | None, routing_key: str | None, max_attempts: int) -> Message:
        """The row to be published into ``queue``.

        Raises:
            ValueError: ``eta``, ``expires`` or ``expiration`` cannot be read, or the task's id or name, or the dedupe
                key, cannot be stored.
            MessageTooLarge: Body, headers and properties exceed :data:`MAX_MESSAGE_BYTES`.
        """
        headers, properties = self.headers, self.properties
        is_task = "task" in headers  # other protocols have headers of these names too (remote control: a float)
        eta, expires = (headers.get("eta"), headers.get("expires")) if is_task else (None, None)
        ttl_ms = properties.get("expiration")
        text = _exact_text if is_task else _shown_text
        headers_text = dumps(headers) if headers else None
        properties_text = dumps({**properties, "priority": self.priority})
        size_bytes = len(self.body) + len(headers_text or "") + len(properties_text)
        if size_bytes > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(size_bytes, MAX_MESSAGE_BYTES)
        return Message(
            queue=queue,
            task_id=text(headers.get("id") or properties.get("correlation_id"), "task id"),
            task_name=text(headers.get("task"), "task name"),
            priority=self.priority,
            run_after=_point_in_time(eta, "eta"),
            expires_at=_point_in_time(expires, "expires"),
            ttl_seconds=float(ttl_ms) / 1000 if ttl_ms not in (None, "") and expires is None else None,
            dedupe_key=_exact_text(properties.get("dedupe_key"), "dedupe key"),
            max_attempts=max_attempts,
            exchange=exchange or None,
            routing_key=routing_key if exchange else None,
            content_type=self.content_type,
            content_encoding=self.content_encoding,
            headers=headers_text,
            properties=properties_text,
            body=self.body,
        )


def clamp_priority(priority: int | None) -> int:
    """The lane of a priority: 0 to 9, what lies outside is moved to the nearer end."""
    return min(max(int(priority or 0), 0), _HIGHEST_PRIORITY)


def _text_encoding(content_encoding: str | None) -> str:
    return _TEXT if not content_encoding or content_encoding == "binary" else content_encoding


def _exact_text(value: Any, name: str) -> str | None:
    """A value by which jobs, results and revokes are found, so that a worker must be given the very same."""
    if value is None:
        return None
    text = str(value)
    if storable(text) != text:
        raise ValueError(f"{name} {text[:80]!r} holds a NUL or a lone surrogate, which PostgreSQL cannot store")
    return text


def _shown_text(value: Any, name: str) -> str | None:
    """A value that only people look at."""
    return None if value is None else storable(str(value))


def _point_in_time(value: Any, name: str) -> dt.datetime | None:
    """A time from a header: ISO 8601 text or datetime; a naive one means UTC, as in Celery's protocol."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"cannot read the message header {name}={value!r}: expected an ISO 8601 time") from None
    if not isinstance(value, dt.datetime):
        raise ValueError(f"cannot read the message header {name}={value!r}: expected an ISO 8601 time")
    return value if value.tzinfo else value.replace(tzinfo=dt.UTC)


class DeliveredMessage(KombuMessage):
    """A message as a consumer gets it."""

    body: Any
    delivery_tag: Any  # a Tag; kombu says text

    def ack(self, multiple: bool = False) -> None:
        """See kombu. In a worker, a task that Celery acks before it has taken it up was revoked or has expired."""
        if (process := self._judging_process()) is not None:
            process.ledger.end(self.delivery_tag, process.judge.state_on_ack(self))
        super().ack(multiple)

    def reject(self, requeue: bool = False) -> None:
        """See kombu. In a worker, a task that Celery rejects before it has taken it up cannot be run here."""
        if not requeue and (process := self._judging_process()) is not None:
            process.ledger.bury(self.delivery_tag, process.judge.reason_on_reject(self))
        super().reject(requeue)

    def _judging_process(self) -> Any:
        """The worker that holds this job without having taken its task up."""
        process: Any = self.channel.process if self.channel is not None else None
        if process is None or process.judge is None:
            return None
        return process if process.ledger.is_unfollowed(self.delivery_tag) else None


def open_claimed(claimed: Claimed, channel: Any, consumer_tag: str | None) -> DeliveredMessage:
    """The kombu message of a claimed job.

    An ``eta`` header has been kept by the queue: it is taken out (and kept as ``held_eta``), since Celery would
    park the task again by the worker's own clock.
    """
    headers = loads(claimed.headers) if claimed.headers else {}
    if headers.get("eta") is not None and "task" in headers:
        headers["held_eta"] = headers["eta"]
        headers["eta"] = None
    delivery_info = {
        "exchange": claimed.exchange or "",
        "routing_key": claimed.routing_key if claimed.exchange else claimed.queue,
        "redelivered": claimed.attempts > 1,
        "attempts": claimed.attempts,
        "job_id": claimed.job_id,
        "delivery_tag": claimed.claim,
        "consumer_tag": consumer_tag,
        "queue": claimed.queue,
        "priority": claimed.priority,
    }
    tag = Tag(claimed.job_id, claimed.claim)
    return _open(claimed, channel, tag, headers, delivery_info)


def open_mail(mail: Mail, channel: Any, consumer_tag: str | None) -> DeliveredMessage:
    """The kombu message of a transient message."""
    delivery_info = {
        "exchange": mail.exchange or "",
        "routing_key": mail.routing_key if mail.routing_key is not None else mail.queue,
        "redelivered": mail.redelivered,
        "delivery_tag": mail.message_id,
        "consumer_tag": consumer_tag,
        "queue": mail.queue,
        "priority": mail.priority,
    }
    return _open(mail, channel, Tag(0, mail.message_id), loads(mail.headers) if mail.headers else {}, delivery_info)


def _open(
    row: Claimed | Mail, channel: Any, tag: Tag, headers: dict[str, Any], delivery_info: dict[str, Any]
) -> DeliveredMessage:
    return DeliveredMessage(
        body=bytes(row.body),  # type: ignore[arg-type]
        delivery_tag=tag,  # type: ignore[arg-type]
        content_type=row.content_type,
        content_encoding=row.content_encoding,
        delivery_info=delivery_info,
        properties=loads(row.properties) if row.properties else {},
        headers=headers,
        channel=channel,
    )
