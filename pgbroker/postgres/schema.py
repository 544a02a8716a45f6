"""The schema as SQLAlchemy Core tables: what the migrations made, in a form that queries are written with.

The tables carry no schema name. :func:`compiled` puts in the configured one and gives what
:meth:`~pgbroker.postgres.connection.Session.query` takes; with an SQLAlchemy connection use
``execution_options(schema_translate_map={None: schema})``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import REAL, BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import ENUM, JSONB, TIMESTAMP
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

from pgbroker.model import AckMode, JobStatus

#: Partitions of ``job_history``: a ring of days.
HISTORY_SLOTS = 32

metadata = MetaData()
_dialect = PGDialect_psycopg2(paramstyle="format")  # type: ignore[no-untyped-call]

_STATUS = ENUM(*JobStatus, name="job_status", create_type=False)
_ACK_MODE = ENUM(*AckMode, name="ack_mode", create_type=False)
_TIME = TIMESTAMP(timezone=True)


def compiled(statement: ClauseElement, schema: str) -> tuple[str, list[Any]]:
    """The SQL of a statement and its arguments, in their order.

    Args:
        statement: A ``select``, ``insert``, ``update`` or ``delete`` over the tables of this module.
        schema: Name of the schema.
    """
    query = statement.compile(
        dialect=_dialect,
        schema_translate_map={None: schema},
        render_schema_translate=True,
        compile_kwargs={"render_postcompile": True},
    )
    assert isinstance(query, SQLCompiler)
    return str(query), [query.params[name] for name in query.positiontup or ()]


def _message_columns() -> list[Column[Any]]:
    """How a message is stored beside its body."""
    names = ("exchange", "routing_key", "content_type", "content_encoding", "headers", "properties")
    return [*(Column(name, Text) for name in names), Column("body", LargeBinary, nullable=False)]


def _jobs(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("job_id", BigInteger, primary_key=True),
        Column("run_after", _TIME, nullable=False),
        Column("enqueued_at", _TIME, nullable=False),
        Column("expires_at", _TIME),
        Column("claimed_at", _TIME),
        Column("started_at", _TIME),
        Column("lease_until", _TIME),
        Column("buried_at", _TIME),
        Column("claim", BigInteger),
        Column("status", _STATUS, nullable=False),
        Column("ack_mode", _ACK_MODE),
        Column("priority", SmallInteger, nullable=False),
        Column("attempts", SmallInteger, nullable=False),
        Column("losses", SmallInteger, nullable=False),
        Column("max_attempts", SmallInteger, nullable=False),
        Column("requeues", SmallInteger, nullable=False),
        Column("queue", Text, nullable=False),
        Column("task_id", Text),
        Column("task_name", Text),
        Column("worker", Text),
        Column("dedupe_key", Text),
        Column("last_error", Text),
        *_message_columns(),
    )


#: Every job that has not ended, and the dead ones.
jobs = _jobs("jobs")
#: The partition of PENDING and RUNNING jobs.
jobs_live = _jobs("jobs_live")
#: The partition of DEAD jobs.
jobs_dead = _jobs("jobs_dead")

#: Finished jobs, without bodies; read them through :data:`job_log`, which knows how long they stay visible.
job_history = Table(
    "job_history",
    metadata,
    Column("slot", SmallInteger, nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("enqueued_at", _TIME, nullable=False),
    Column("run_after", _TIME),
    Column("claimed_at", _TIME),
    Column("started_at", _TIME),
    Column("finished_at", _TIME, nullable=False),
    Column("status", _STATUS, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    Column("max_attempts", SmallInteger, nullable=False),
    Column("queue", Text, nullable=False),
    Column("task_id", Text),
    Column("task_name", Text),
    Column("worker", Text),
    Column("dedupe_key", Text),
    Column("last_error", Text),
    Column("result_state", Text),
    Column("result", Text),
)

#: View: live, dead and finished jobs.
job_log = Table(
    "job_log",
    metadata,
    Column("job_id", BigInteger),
    Column("task_id", Text),
    Column("task_name", Text),
    Column("queue", Text),
    Column("status", _STATUS),
    Column("priority", SmallInteger),
    Column("attempts", SmallInteger),
    Column("max_attempts", SmallInteger),
    Column("run_after", _TIME),
    Column("expires_at", _TIME),
    Column("enqueued_at", _TIME),
    Column("claimed_at", _TIME),
    Column("started_at", _TIME),
    Column("lease_until", _TIME),
    Column("worker", Text),
    Column("claim", BigInteger),
    Column("dedupe_key", Text),
    Column("last_error", Text),
    Column("finished_at", _TIME),
    Column("result_state", Text),
    Column("result", Text),
)

#: What went wrong on the way.
job_events = Table(
    "job_events",
    metadata,
    Column("event_id", BigInteger, primary_key=True),
    Column("job_id", BigInteger, nullable=False),
    Column("task_id", Text),
    Column("happened_at", _TIME, nullable=False),
    Column("kind", Text, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    Column("worker", Text),
    Column("detail", Text),
)

settings = Table("settings", metadata, Column("name", Text, primary_key=True), Column("value", Text))

revoked_stamps = Table(
    "revoked_stamps",
    metadata,
    Column("header", Text, nullable=False),
    Column("value", JSONB, nullable=False),
    Column("revoked_at", _TIME, nullable=False),
    Column("until", _TIME, nullable=False),
)

revoked = Table("revoked", metadata, Column("task_id", Text, primary_key=True), Column("until", _TIME, nullable=False))

#: Ends that the broker made without Celery and that a worker still has to tell it.
outcome_outbox = Table(
    "outcome_outbox",
    metadata,
    Column("outcome_id", BigInteger, primary_key=True),
    Column("job_id", BigInteger, nullable=False),
    Column("task_id", Text),
    Column("task_name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("created_at", _TIME, nullable=False),
    Column("taken_until", _TIME),
    Column("deliveries", SmallInteger, nullable=False),
    Column("exchange", Text),
    Column("routing_key", Text),
    Column("content_type", Text),
    Column("content_encoding", Text),
    Column("headers", Text, nullable=False),
    Column("properties", Text),
    Column("body", LargeBinary, nullable=False),
)

queues = Table(
    "queues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("arguments", Text),
    Column("paused_at", _TIME),
    Column("declared_at", _TIME, nullable=False),
    Column("ttl_seconds", REAL),
    Column("max_priority", SmallInteger),
    Column("dead_letter_exchange", Text),
    Column("dead_letter_key", Text),
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("name", Text, primary_key=True),
    Column("type", Text, nullable=False),
    Column("durable", Boolean, nullable=False),
    Column("auto_delete", Boolean, nullable=False),
    Column("arguments", Text),
)

bindings = Table(
    "bindings",
    metadata,
    Column("exchange", Text, primary_key=True),
    Column("queue", Text, primary_key=True),
    Column("routing_key", Text, primary_key=True),
    Column("pattern", Text),
    Column("arguments", Text, primary_key=True),
)

#: Queues whose messages are not jobs.
transient_queues = Table(
    "transient_queues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("arguments", Text),
    Column("owner", Text),
    Column("auto_delete", Boolean, nullable=False),
    Column("expires_seconds", REAL),
    Column("ttl_seconds", REAL),
    Column("max_length", Integer),
    Column("max_priority", SmallInteger),
    Column("dead_letter_exchange", Text),
    Column("dead_letter_key", Text),
    Column("consumers", Integer, nullable=False),
    Column("lives_until", _TIME),
)

#: The messages of the transient queues.
mailbox = Table(
    "mailbox",
    metadata,
    Column("message_id", BigInteger, primary_key=True),
    Column("queue", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("expires_at", _TIME),
    Column("redelivered", Boolean, nullable=False),
    *_message_columns(),
)

#: Who is consuming what.
consumers = Table(
    "consumers",
    metadata,
    Column("worker", Text, primary_key=True),
    Column("tag", Text, primary_key=True),
    Column("queue", Text, nullable=False),
    Column("lives_until", _TIME, nullable=False),
)

#: Workers that found nothing, and the channel that wakes each.
sleepers = Table(
    "sleepers",
    metadata,
    Column("sleeper_id", BigInteger, nullable=False),
    Column("queue", Text, primary_key=True),
    Column("channel", Text, primary_key=True),
    Column("until", _TIME, nullable=False),
)

results = Table(
    "results",
    metadata,
    Column("task_id", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("meta", LargeBinary, nullable=False),
    Column("stored_at", _TIME, nullable=False),
    Column("expires_at", _TIME),
)

result_groups = Table(
    "result_groups",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("meta", LargeBinary, nullable=False),
    Column("expires_at", _TIME),
)

#: Chords that have not ended, and for an hour those that have.
chords = Table(
    "chords",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("size", Integer),
    Column("added", Integer, nullable=False),
    Column("returned", Integer, nullable=False),
    Column("finished_at", _TIME),
    Column("expires_at", _TIME),
    Column("structure", LargeBinary),
    Column("body", LargeBinary),
)

#: What the members of unfinished chords returned.
chord_parts = Table(
    "chord_parts",
    metadata,
    Column("group_id", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("part", LargeBinary, nullable=False),
)

#: Task ids of duplicates that lead to the live job's result.
aliases = Table(
    "aliases",
    metadata,
    Column("alias_id", BigInteger, primary_key=True),
    Column("check_at", _TIME, nullable=False),
    Column("task_id", Text, primary_key=True),
    Column("leads_to", Text, nullable=False),
)

#: Who waits for a result, and the channel that wakes it.
waiters = Table(
    "waiters",
    metadata,
    Column("task_id", Text, primary_key=True),
    Column("channel", Text, primary_key=True),
    Column("until", _TIME, nullable=False),
    Column("every_state", Boolean, nullable=False),
    Column("payload", Text, primary_key=True),
)
