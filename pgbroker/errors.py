"""Every error pgbroker raises, in one tree under `PgBrokerError`.

A class's docstring says what happened and what to do, and is its message where none is given. The arguments
of an error are its constructor's arguments, so that errors survive pickling and Celery's result backends.
Messages never contain a password: whoever raises an error masks what it quotes.
"""

from __future__ import annotations

import inspect

_MIGRATE = "celery -A APP pgbroker migrate"


class PgBrokerError(Exception):
    """Something pgbroker was asked to do failed; catch this class to catch every error of its own."""

    def __str__(self) -> str:
        if self.args:
            return super().__str__()
        return " ".join((inspect.getdoc(type(self)) or type(self).__name__).split())


class OptionError(PgBrokerError, ValueError):
    """A URL or an option is wrong; correct the broker URL, the backend URL or the transport options."""


class EmbeddedUnavailable(PgBrokerError):
    """The embedded server cannot be started; run `pip install pgbroker[embedded]` or name a server in the URL."""


class DatabaseError(PgBrokerError):
    """PostgreSQL refused a statement; the message is the server's, `sqlstate` names the kind of failure.

    Args:
        message: what the server said and what was being done.
        sqlstate: the five-character code (PostgreSQL, Appendix A "Error Codes"), or `None` if there was none.
    """

    def __init__(self, message: str = "", *, sqlstate: str | None = None) -> None:
        super().__init__(*([message] if message else []))
        self.sqlstate = sqlstate


class StatementTimeout(DatabaseError):
    """A statement ran into `statement_timeout` or `lock_timeout`; raise the limit or look for who holds the lock."""


class PermissionDenied(DatabaseError):
    """The database role lacks a privilege; grant it, or run the migration as the owner of the schema."""


class DatabaseUnreachable(PgBrokerError, ConnectionError):
    """No connection to the database; check that the server runs, and the host, port, database, user and password.

    Args:
        message: what the driver said, with the password masked.
        sqlstate: the server's code where a server answered, else `None`.
    """

    def __init__(self, message: str = "", *, sqlstate: str | None = None) -> None:
        super().__init__(*([message] if message else []))
        self.sqlstate = sqlstate


class ConnectionLost(DatabaseUnreachable):
    """An existing connection died, or its server became read-only in a failover; reconnect and try again."""


class SchemaError(PgBrokerError):
    """The database schema does not fit; run `celery -A APP pgbroker check` for details.

    Args:
        schema: name of the schema.
        detail: what is wrong with it and what to do.
    """

    def __init__(self, schema: str, detail: str = "") -> None:
        super().__init__(schema, detail)
        self.schema = schema
        self.detail = detail

    def __str__(self) -> str:
        detail = self.detail or "does not fit this version of pgbroker; run: celery -A APP pgbroker check"
        return f'schema "{self.schema}" {detail}'


class SchemaMissing(SchemaError):
    """The schema does not exist and may not be created here; run `celery -A APP pgbroker migrate`.

    Args:
        schema: name of the schema.
    """

    def __init__(self, schema: str) -> None:
        super().__init__(schema, f"does not exist in this database; run: {_MIGRATE}")
        self.args = (schema,)


class SchemaTooOld(SchemaError):
    """The schema was made by an older pgbroker; run `celery -A APP pgbroker migrate`.

    Args:
        schema: name of the schema.
        found: revision of the schema in the database.
        needed: revision that this version of pgbroker needs.
    """

    def __init__(self, schema: str, found: str, needed: str) -> None:
        super().__init__(schema, f"is at revision {found}, this version of pgbroker needs {needed}; run: {_MIGRATE}")
        self.args = (schema, found, needed)
        self.found = found
        self.needed = needed


class SchemaTooNew(SchemaError):
    """The schema was made by a newer pgbroker; upgrade pgbroker here, never the schema downwards.

    Args:
        schema: name of the schema.
        found: revision of the schema in the database.
        needed: newest revision that this version of pgbroker knows.
    """

    def __init__(self, schema: str, found: str, needed: str) -> None:
        super().__init__(
            schema,
            f"is at revision {found}, newer than {needed}, the newest this version of pgbroker knows; upgrade here "
            f"with: pip install --upgrade pgbroker (`{_MIGRATE}` of the newer version made the schema)",
        )
        self.args = (schema, found, needed)
        self.found = found
        self.needed = needed


class DuplicateJob(PgBrokerError):
    """A live job holds the dedupe key; wait for it, or use its result instead of publishing another.

    Args:
        job_id: the live job.
        task_id: the live job's Celery task id.
    """

    def __init__(self, job_id: int, task_id: str | None) -> None:
        super().__init__(job_id, task_id)
        self.job_id = job_id
        self.task_id = task_id

    def __str__(self) -> str:
        return f"job {self.job_id} (task {self.task_id}) holds this dedupe key and has not ended; nothing was published"


class BatchTooLarge(PgBrokerError):
    """A batch holds no more than `batch_max` messages; use several batches, or raise the option.

    Args:
        batch_max: the limit.
    """

    def __init__(self, batch_max: int) -> None:
        super().__init__(batch_max)
        self.batch_max = batch_max

    def __str__(self) -> str:
        return f"a batch holds at most batch_max = {self.batch_max} messages; use several batches, or raise the option"


class BatchFailed(DatabaseError):
    """PostgreSQL refused a message of a batch, so nothing of the batch was stored; correct or leave out that message.

    Args:
        which: the message, by its place in the batch and its task.
        message: what the server said.
        sqlstate: five characters (PostgreSQL, "Error Codes"), if the server named it.
    """

    def __init__(self, which: str, message: str, *, sqlstate: str | None = None) -> None:
        super().__init__(message, sqlstate=sqlstate)
        self.args = (which, message)
        self.which = which
        self.message = message

    def __str__(self) -> str:
        return f"{self.which} was refused, and nothing of the batch was stored: {self.message}"


class MessageTooLarge(PgBrokerError, ValueError):
    """A message exceeds what PostgreSQL takes in one field; store what is large elsewhere and send a reference to it.

    Args:
        size_bytes: body, headers and properties together.
        limit_bytes: how large they may be.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"the message has {self.size_bytes} bytes, more than the {self.limit_bytes} that can be stored; nothing "
            "was sent: store what is large elsewhere and send a reference to it"
        )


class NotInTransaction(PgBrokerError):
    """A connection has no transaction that a publish could join; begin one, or publish outside the block."""


class OtherDatabase(PgBrokerError):
    """A publish joins transactions in the broker's own database only; name that in the broker URL, or publish alone.

    Args:
        broker: the broker's database, without a password.
        connection: the database that the caller's connection leads to.
    """

    def __init__(self, broker: str, connection: str) -> None:
        super().__init__(broker, connection)
        self.broker = broker
        self.connection = connection

    def __str__(self) -> str:
        return (
            f"this connection leads to {self.connection}, the broker is {self.broker}: a publish can join only a "
            "transaction in the broker's own database; nothing was sent"
        )


class TransactionFailed(DatabaseError):
    """The transaction that a publish was to join has failed, and PostgreSQL will not commit it; roll it back."""


class DedupeNotSupported(PgBrokerError):
    """A dedupe key cannot stand on a whole group, chord or chain, nor on a chord's members; put it on single tasks."""


class Unroutable(PgBrokerError):
    """No queue is bound for this routing key; declare the queue or correct the route. The message was not stored.

    Args:
        exchange: exchange the message was published to.
        routing_key: routing key of the message.
    """

    def __init__(self, exchange: str, routing_key: str) -> None:
        super().__init__(exchange, routing_key)
        self.exchange = exchange
        self.routing_key = routing_key

    def __str__(self) -> str:
        return (
            f"no queue is bound to exchange {self.exchange!r} for routing key {self.routing_key!r}; the message was "
            "not stored: declare the queue (task_queues) or correct the route (task_routes)"
        )


class QueueNotFound(PgBrokerError):
    """No queue has this name; declare it, or correct the name (`celery -A APP pgbroker queues` lists them).

    Args:
        name: name of the queue.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no queue named {self.name!r}; declare it first (`celery -A APP pgbroker queues` lists the queues)"


class ExchangeNotFound(PgBrokerError):
    """No exchange has this name; declare it, or correct the name (`celery -A APP list bindings` lists exchanges).

    Args:
        name: name of the exchange.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no exchange named {self.name!r}; declare it first (`celery -A APP list bindings` lists exchanges)"


class PreconditionFailed(PgBrokerError):
    """A queue or exchange is not as the call asks for; delete it first, or ask for what is there.

    Args:
        name: name of the queue or exchange.
        detail: what is in the way, and what to do.
    """

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(name, detail)
        self.name = name
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.name!r}: {self.detail or 'it is not as the call asks for; delete it first'}"


class ResourceLocked(PgBrokerError):
    """An exclusive queue belongs to another connection; use another name or wait until that connection ends.

    Args:
        name: name of the queue.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"queue {self.name!r} is exclusive to another connection; use another name or wait until that one ends"
