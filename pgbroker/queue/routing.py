"""Typed calls of the SQL functions for exchanges, queues, bindings and transient messages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pgbroker.postgres.sql_files import in_statement
from pgbroker.queue.store import Call, Message


class Dispatched(NamedTuple):
    """One queue that a message went to; the last three are those of ``Published`` for a queue that holds jobs."""

    queue: str
    kind: str
    job_id: int | None
    duplicate_of: int | None
    duplicate_task_id: str | None


class Mail(NamedTuple):
    """A transient message, read and thereby gone from its queue."""

    message_id: int
    queue: str
    priority: int
    expires_at: dt.datetime | None
    redelivered: bool
    exchange: str | None
    routing_key: str | None
    content_type: str | None
    content_encoding: str | None
    headers: str | None
    properties: str | None
    body: bytes


class QueueTraits(NamedTuple):
    """What a queue's declaration asks for; the order is that of the parameters of ``declare_queue()`` after the name.

    Attributes:
        arguments: All of them, a JSON object with its keys in order; the others are read out of it.
        is_transient: Its messages are no jobs.
        owner: For an exclusive queue, the process that owns it.
        dead_letter_exchange: ``""`` is the default exchange, ``None`` none at all.
    """

    arguments: str | None = None
    is_transient: bool = False
    owner: str | None = None
    auto_delete: bool = False
    expires_seconds: float | None = None
    ttl_seconds: float | None = None
    max_length: int | None = None
    max_priority: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None


#: Types of the arrays of ``publish_many()``, from exchange to alias.
_MANY_TYPES = (
    *("text", "text", "text", "text", "integer", "timestamptz", "timestamptz", "double precision", "double precision"),
    *("text", "integer", "text", "text", "text", "text", "bytea", "boolean"),
)

#: Of a job queue without any arguments.
PLAIN_QUEUE = QueueTraits()


class Routing:
    """Calls of the functions in one schema. Use :func:`routing_for`."""

    def __init__(self, schema: str) -> None:
        self.prefix = in_statement(schema) + "."

    def _call(self, function: str, *arguments: Any) -> Call:
        return f"select {self.prefix}{function}({', '.join(['%s'] * len(arguments))})", arguments

    def queue_kind(self, queue: str) -> Call:
        """Row: ``job``, ``transient`` or ``None``."""
        return self._call("queue_kind", queue)

    def queue_count(self, queue: str, cap: int | None = None) -> Call:
        """Row: ready jobs of the queue, counted up to ``cap``."""
        return self._call("queue_count", queue, cap)

    def mail_count(self, queue: str) -> Call:
        """Row: transient messages that wait in the queue."""
        return f"select count(*) from {self.prefix}mailbox where queue = %s", (queue,)

    def consumer_count(self, queue: str, *, besides: str | None = None) -> Call:
        """Row: living consumers of the queue, of all processes or of all but one."""
        sql = (
            f"select count(*) from {self.prefix}consumers "
            "where queue = %s and lives_until > statement_timestamp() and worker is distinct from %s"
        )
        return sql, (queue, besides)

    def declare_queue(self, queue: str, traits: QueueTraits = PLAIN_QUEUE) -> Call:
        """Row: the kind of the queue that is there now."""
        return self._call("declare_queue", queue, *traits)

    def purge_batch(self, queue: str, limit: int, where: Sequence[Any]) -> Call:
        """Row: how many messages were taken out, and ``where`` of the next call. Its first item is ``None`` at the end.

        Args:
            queue: The queue.
            limit: How many jobs at most.
            where: What the call before returned; to begin, four times ``None``.
        """
        columns = "purged, lane, last_job, after_time, after_id"
        lane, last_job, *after = where
        sql = f"select {columns} from {self.prefix}purge_batch(%s, %s, %s, %s::smallint, %s::timestamptz, %s)"
        return sql, (queue, limit, last_job, lane, *after)

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> Call:
        """Row: how many messages were taken out, -1 if a condition did not hold."""
        return self._call("delete_queue", queue, if_unused, if_empty)

    def declare_exchange(
        self, exchange: str, type: str, *, durable: bool = True, auto_delete: bool = False, arguments: str | None = None
    ) -> Call:
        """Row: the type of the exchange that is there now."""
        return self._call("declare_exchange", exchange, type, durable, auto_delete, arguments)

    def exchange_type(self, exchange: str) -> Call:
        """Rows: the type of the exchange; none if it is unknown."""
        return f"select type from {self.prefix}exchanges where name = %s", (exchange,)

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> Call:
        """Row: whether it was removed."""
        return self._call("delete_exchange", exchange, if_unused)

    def bind_queue(
        self, exchange: str, queue: str, routing_key: str, pattern: str | None = None, arguments: str | None = None
    ) -> Call:
        """Row: ``bound``, ``no exchange`` or ``no queue``."""
        return self._call("bind_queue", exchange, queue, routing_key, pattern, arguments)

    def unbind_queue(self, exchange: str, queue: str, routing_key: str, arguments: str | None = None) -> Call:
        """Row: whether there was such a binding."""
        return self._call("unbind_queue", exchange, queue, routing_key, arguments)

    def exchange_bindings(self, exchange: str) -> Call:
        """Rows: one, if anything is bound to the exchange."""
        return f"select 1 from {self.prefix}bindings where exchange = %s limit 1", (exchange,)

    def topology_channel(self) -> Call:
        """Row: the NOTIFY channel that says of new bindings."""
        return self._call("topology_channel")

    def bindings(self) -> Call:
        """Rows: queue, exchange, routing key, arguments."""
        return f"select queue, exchange, routing_key, arguments from {self.prefix}bindings order by 2, 1, 3", ()

    def dispatch(
        self,
        message: Message,
        *,
        is_joined: bool = False,
        wait_seconds: float | None = None,
        with_alias: bool = False,
    ) -> Call:
        """Send a message through its exchange. Rows: :class:`Dispatched`; none if it was unroutable.

        Args:
            message: The message.
            is_joined: As for :meth:`~pgbroker.queue.store.Store.publish`, like the others.
            wait_seconds: The same.
            with_alias: The same.
        """
        queue, *middle = message[: Message._fields.index("exchange")]
        rest = message[Message._fields.index("content_type") :]
        arguments = (message.exchange or "", message.routing_key or queue, *middle, *rest, is_joined)
        wait_ms = None if wait_seconds is None else max(1, int(wait_seconds * 1000))
        marks = ", ".join(["%s"] * (len(arguments) + 2))
        return f"select * from {self.prefix}dispatch({marks})", (*arguments, wait_ms, with_alias)

    def leads_to_jobs(self, message: Message) -> Call:
        """Row: whether the message would go to a queue that holds jobs."""
        sql = f"select exists (select from {self.prefix}route(%s, %s, %s) where kind = 'job')"
        return sql, (message.exchange, message.routing_key, message.headers)

    def publish_many(
        self, messages: Sequence[Message], numbers: Sequence[int], with_alias: Sequence[bool], began: dt.datetime
    ) -> Call:
        """Send messages through their exchanges, as a part of a transaction. Rows: the message's number, Dispatched.

        Args:
            messages: The messages, those with dedupe keys in the order of these.
            numbers: The place of each in its batch.
            with_alias: For each as for :meth:`~pgbroker.queue.store.Store.publish`.
            began: When the batch began, by the server's clock.
        """
        columns = dict(zip(Message._fields, zip(*messages, strict=True), strict=True))
        queues, exchanges, keys = columns.pop("queue"), columns.pop("exchange"), columns.pop("routing_key")
        first = ([x or "" for x in exchanges], [key or queue for key, queue in zip(keys, queues, strict=True)])
        marks, arguments = ["%s::integer[]", "%s::timestamptz"], [list(numbers), began]
        for type, values in zip(_MANY_TYPES, (*first, *columns.values(), with_alias), strict=True):
            some = values[0]
            if all(value is some or value == some for value in values):  # what all have in common travels once
                marks.append(f"array_fill(%s::{type}, array[%s::integer])")
                arguments += some, len(values)
            else:
                marks.append(f"%s::{type}[]")
                arguments.append(list(values))
        return f"select * from {self.prefix}publish_many({', '.join(marks)})", tuple(arguments)

    def fetch_mail(self, queues: Sequence[str], want: int) -> Call:
        """Read up to ``want`` transient messages. Rows: :class:`Mail`, in order."""
        sql = f"select * from {self.prefix}fetch_mail(%s::text[], %s) order by priority desc, message_id"
        return sql, (list(queues), want)

    def get_mail(self, queue: str) -> Call:
        """Read one transient message, which counts as use of the queue. Rows: :class:`Mail`, or none."""
        return f"select * from {self.prefix}get_mail(%s)", (queue,)

    def return_mail(self, mail: Mail, *, is_redelivered: bool) -> Call:
        """Put a transient message that was read back to its place; ``is_redelivered``: a consumer had it."""
        row = mail._replace(redelivered=is_redelivered or mail.redelivered, body=bytes(mail.body))
        return self._call("return_mail", *row)

    def refuse_mail(self, mail: Mail) -> Call:
        """Send a transient message that was rejected on to its queue's dead letter exchange, if that names one."""
        message = mail[Mail._fields.index("exchange") : -1]
        unknown = (None, None, None)  # detail, task id and name
        return self._call(
            "dead_letter", mail.queue, "rejected", *unknown, mail.priority, None, 5, *message, bytes(mail.body)
        )

    def attend(
        self, worker: str, tags: Sequence[str], queues: Sequence[str], kept: Sequence[str], seconds: float
    ) -> Call:
        """Say that consumers and transient queues of a process are alive for so many seconds.

        Rows: each of these transient queues that is there, and how many bindings it has.
        """
        sql = f"select queue_name, bindings from {self.prefix}attend(%s, %s::text[], %s::text[], %s::text[], %s)"
        return sql, (worker, list(tags), list(queues), list(kept), seconds)

    def depart(self, worker: str, tags: Sequence[str] | None) -> Call:
        """Say that consumers are gone; ``None``: all of the process, with its exclusive queues."""
        return f"select {self.prefix}depart(%s, %s::text[])", (worker, None if tags is None else list(tags))

    def drop_exclusive(self, worker: str, queues: Sequence[str]) -> Call:
        """Remove exclusive queues of a connection that ends, unless somebody else has taken them over."""
        sql = (
            f"select {self.prefix}delete_queue(q.name, true) from {self.prefix}transient_queues q "
            "where q.owner = %s and q.name = any (%s::text[])"
        )
        return sql, (worker, list(queues))

    def sweep_transient(self) -> Call:
        """Remove what dead processes left behind. Row: how many transient queues went away."""
        return self._call("sweep_transient")


@lru_cache(maxsize=32)
def routing_for(schema: str) -> Routing:
    """The calls for that schema."""
    return Routing(schema)
