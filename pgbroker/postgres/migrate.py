"""Brings the schema to the revision this version needs; sees cheaply whether it is there already."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres.connection import Session, map_error
from pgbroker.postgres.revisions import HEAD, REVISIONS, VERSION_TABLE
from pgbroker.postgres.sql_files import in_statement, quote_identifier

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection, Engine

logger = logging.getLogger(__name__)

#: Name in ``settings``: the oldest revision whose processes can work with this schema, if it is not the schema's own.
MINIMUM_REVISION = "minimum_revision"

#: SQLSTATEs of "no such table" and "no such schema".
_ABSENT = ("42P01", "3F000")

_fitting: set[Options] = set()
# Alembic's context is global to the process: one migration at a time
_alembic_lock = threading.Lock()


def ensure_schema(session: Session) -> None:
    """Make sure that the schema of the session's options is there and fits; asks once per process and options.

    With ``auto_migrate`` a missing or older schema is created or upgraded; everything else only reads.

    Raises:
        SchemaMissing: There is none, and ``auto_migrate`` is off.
        SchemaTooOld: An older pgbroker made it, and ``auto_migrate`` is off.
        SchemaTooNew: A newer pgbroker made it, and says that this version cannot work with it.
        PermissionDenied: The role may not read, create or upgrade it.
        DatabaseUnreachable: No server there.
    """
    options = session.options
    if options in _fitting:
        session.has_schema = True
        return
    session.has_schema = False
    found = read_revision(session)
    if found != HEAD:
        reason = refusal(session, found)
        if reason is not None:
            if isinstance(reason, errors.SchemaTooNew) or not options.auto_migrate:
                raise reason
            upgrade(options)
    _fitting.add(options)
    session.has_schema = True


def forget(options: Options | None = None) -> None:
    """Let the next :func:`ensure_schema` ask again; for callers who saw a table of ours missing."""
    if options is None:
        _fitting.clear()
    else:
        _fitting.discard(options)


def upgrade(options: Options, *, repair: bool = False) -> bool:
    """Create the schema or bring it to :data:`HEAD`, in one transaction under an advisory lock.

    Any number of processes may call this at once: one works, the others wait up to a minute and find it done.

    Args:
        options: Which server and schema.
        repair: Install the functions anew even if the revision is right.

    Returns:
        Whether the revision changed.

    Raises:
        SchemaTooNew: A newer pgbroker made the schema.
        PermissionDenied: The role may not do this, or may only read.
        StatementTimeout: Another migration, or somebody who uses a table, did not end in time.
        DatabaseUnreachable: No server there.
    """
    # Alembic is imported here, before the transaction begins, because that takes a while
    with _quiet_alembic():
        from pgbroker.postgres import installer
    from sqlalchemy.exc import DBAPIError

    engine = _engine(options)
    try:
        with _alembic_lock, engine.begin() as connection:
            _require_writable(connection, options)
            for statement in installer.prelude(options.schema):
                connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
            found = _stored_revision(connection, options.schema)
            if found is not None and found not in REVISIONS:
                raise errors.SchemaTooNew(options.schema, found, HEAD)
            if found != HEAD or repair:
                _run_alembic(options, connection)
        if found != HEAD:
            logger.info('brought schema "%s" from revision %s to %s', options.schema, found, HEAD)
        return found != HEAD
    except DBAPIError as exc:
        cause = exc.orig
        assert isinstance(cause, psycopg2.Error)
        raise _explain(map_error(cause, is_closed=exc.connection_invalidated), options) from None
    finally:
        engine.dispose()


def upgrade_script(options: Options, *, from_revision: str | None = None) -> str:
    """The migration as SQL for a database administrator: one transaction, to be run by psql or any client.

    Args:
        options: Which schema; the server is not asked.
        from_revision: Where the database stands; None for one without our schema.

    Raises:
        OptionError: No such revision.
    """
    if from_revision is not None and from_revision not in REVISIONS:
        raise errors.OptionError(f"no revision {from_revision!r}; known are {', '.join(REVISIONS)}")
    from alembic import command

    output = io.StringIO()
    with _alembic_lock:
        config = _config(options, output)
        command.upgrade(config, f"{from_revision or 'base'}:head", sql=True)
    return output.getvalue()


def read_revision(session: Session) -> str | None:
    """The revision of the schema in the database, or None if there is no schema of ours.

    Raises:
        PermissionDenied: The role may not look.
    """
    schema = session.options.schema
    try:
        rows = session.query(f"select version_num from {in_statement(schema)}.{VERSION_TABLE}")
    except errors.PermissionDenied as exc:
        raise errors.PermissionDenied(
            f"{exc}; `celery -A APP pgbroker check` prints the grants that this role needs",
            sqlstate=exc.sqlstate,
        ) from None
    except errors.DatabaseError as exc:
        if exc.sqlstate in _ABSENT:
            return None
        raise
    return str(rows[0][0]) if rows else None


def refusal(session: Session, found: str | None) -> errors.SchemaError | None:
    """Why this version cannot work with a schema at the revision found, or None if it can."""
    schema = session.options.schema
    if found is None:
        return errors.SchemaMissing(schema)
    if found in REVISIONS:
        return errors.SchemaTooOld(schema, found, HEAD)
    try:
        rows = session.query(f"select value from {in_statement(schema)}.settings where name = %s", [MINIMUM_REVISION])
    except errors.DatabaseError:
        rows = []
    if rows and rows[0][0] in REVISIONS:
        return None
    return errors.SchemaTooNew(schema, found, HEAD)


def _engine(options: Options) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    # isolation_level: after the wait for the lock the transaction must see what the process before it committed
    return create_engine(
        "postgresql+psycopg2://",
        creator=lambda: _connect(options),
        poolclass=NullPool,
        isolation_level="READ COMMITTED",
        use_native_hstore=False,
    )


def _connect(options: Options) -> Any:
    words: dict[str, Any] = dict(options.libpq)
    if options.embedded_dir is not None:
        from pgbroker.postgres import embedded

        words.update(embedded.ensure_running(options.embedded_dir))
    if words.get("application_name") == "pgbroker":
        words["application_name"] = "pgbroker migrate"
    try:
        return psycopg2.connect(**words)
    except psycopg2.Error as exc:
        text = " ".join(str(exc).split())
        raise errors.DatabaseUnreachable(f"cannot connect to {options.safe_url}: {text}") from None


def _require_writable(connection: Connection, options: Options) -> None:
    row = connection.exec_driver_sql(
        "select pg_is_in_recovery(), current_setting('transaction_read_only')::boolean, current_user"
    ).one()
    is_standby, is_read_only, role = row
    if is_standby:
        raise errors.ConnectionLost(f"{options.safe_url} is a standby and cannot be migrated; name the primary")
    if is_read_only:
        raise errors.PermissionDenied(
            f'schema "{options.schema}" cannot be migrated: transactions of role "{role}" are read-only here '
            "(default_transaction_read_only); run the migration as a role that may write"
        )


def _stored_revision(connection: Connection, schema: str) -> str | None:
    table = f"{quote_identifier(schema)}.{VERSION_TABLE}"
    if connection.exec_driver_sql("select to_regclass(%(table)s)", {"table": table}).scalar() is None:
        return None
    revision = connection.exec_driver_sql(f"select version_num from {table}").scalar()
    return None if revision is None else str(revision)


def _config(options: Options, output: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=output)
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["schema"] = options.schema
    return config


def _run_alembic(options: Options, connection: Connection) -> None:
    from alembic import command

    config = _config(options)
    config.attributes["connection"] = connection
    with _quiet_alembic():
        command.upgrade(config, "head")


@contextlib.contextmanager
def _quiet_alembic() -> Iterator[None]:
    """Our own line says what was done; Alembic's own progress has no place in a worker's log."""
    alembic_logger = logging.getLogger("alembic")
    level = alembic_logger.level
    alembic_logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        alembic_logger.setLevel(level)


def _explain(error: errors.PgBrokerError, options: Options) -> errors.PgBrokerError:
    if isinstance(error, errors.PermissionDenied):
        return errors.PermissionDenied(
            f'schema "{options.schema}" cannot be created or upgraded with this role: {error}; run '
            "`celery -A APP pgbroker migrate` as its owner (to create it: grant create on database), or give a "
            "database administrator what `celery -A APP pgbroker migrate --sql` prints",
            sqlstate=error.sqlstate,
        )
    if isinstance(error, errors.StatementTimeout):
        return errors.StatementTimeout(
            f'schema "{options.schema}" was not migrated, because somebody holds a lock: {error}; try again when '
            "long transactions and other migrations have ended",
            sqlstate=error.sqlstate,
        )
    return error


def _after_fork_in_child() -> None:
    global _alembic_lock
    _alembic_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
