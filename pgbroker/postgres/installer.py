"""The SQL that a migration consists of besides its tables: limits, lock, schema, functions.

Each step is text, so that it can be run now or be written into a script for a database administrator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from alembic import context

from pgbroker.postgres import sql_files
from pgbroker.postgres.revisions import HEAD

#: Longest wait for a migration that another process is running, in seconds.
WAIT_SECONDS = 60

#: Longest wait of one DDL statement for a table that somebody uses, in seconds. Short, because everybody who comes
#: later queues behind a DDL statement that waits.
DDL_LOCK_SECONDS = 5

#: How the comment of a function starts that we installed.
MARK = "pgbroker "


def lock_key(schema: str) -> int:
    """The advisory lock that lets one process at a time migrate this schema (a signed 64-bit number)."""
    return int.from_bytes(hashlib.sha256(f"pgbroker migrate {schema}".encode()).digest()[:8], signed=True)


def prelude(schema: str) -> list[str]:
    """Limits for this transaction alone, and the migration lock, held until its end."""
    return [
        f"set local lock_timeout = '{WAIT_SECONDS}s'",
        "set local statement_timeout = 0",
        "set local idle_in_transaction_session_timeout = 0",
        "set local standard_conforming_strings = on",
        "set local check_function_bodies = off",
        "set local search_path = pg_catalog, pg_temp",
        f"select pg_advisory_xact_lock({lock_key(schema)})",
        f"set local lock_timeout = '{DDL_LOCK_SECONDS}s'",
    ]


def create_schema(schema: str) -> list[str]:
    """Create the schema if it is missing.

    ``create schema if not exists`` asks for the right to create one even if it exists, hence the question first.
    """
    return [
        f"""do $do$
begin
    if not exists (select from pg_namespace where nspname = {sql_files.quote_literal(schema)}) then
        create schema {sql_files.quote_identifier(schema)};
    end if;
end
$do$"""
    ]


def tables(name: str) -> list[str]:
    """The tables of the revision whose file is ``sql/tables/<name>.sql``."""
    return [sql_files.tables_sql(name, _schema())]


def install_functions(schema: str) -> list[str]:
    """Create or replace every function, mark it as ours, and drop ours of old that no file holds any more.

    Functions are replaced in place, not dropped and created: grants survive, and a statement that another session
    is planning keeps finding its function. What was there before is remembered with its row version (``xmin``); what
    still has the same one afterwards was not replaced by any file. Only functions that carry our mark are dropped.
    """
    of_schema = f"p.pronamespace = (select oid from pg_namespace where nspname = {sql_files.quote_literal(schema)})"
    marked = f"{of_schema} and starts_with(obj_description(p.oid, 'pg_proc'), '{MARK}')"
    names = ", ".join(f"'{name}'" for name in sql_files.function_names())
    remember = f"""select set_config('pgbroker_installer.before', coalesce((
    select string_agg(p.oid || ':' || p.xmin, ',') from pg_proc p where {marked}), ''), true)"""
    finish = f"""do $do$
declare
    f regprocedure;
begin
    for f in select p.oid from pg_proc p where {marked}
        and p.oid || ':' || p.xmin = any (string_to_array(current_setting('pgbroker_installer.before'), ','))
    loop
        execute format('drop routine %s', f);
    end loop;
    for f in select p.oid from pg_proc p where {of_schema} and p.proname in ({names})
    loop
        execute format('comment on routine %s is %L', f, '{MARK}{HEAD}');
    end loop;
end
$do$"""
    return [remember, *sql_files.functions_sql(schema), finish]


def execute(statements: Iterable[str]) -> None:
    """Run the statements in the migration under way, or write them out in offline mode.

    They go to the driver as they are: neither ``%`` nor ``:name`` means anything to anybody on the way.
    """
    migration = context.get_context()
    for statement in statements:
        if migration.as_sql:
            text = statement.strip()
            migration.impl.static_output(text if text.endswith(";") else text + ";")
        else:
            connection = migration.connection
            assert connection is not None, "a migration that is not written out has a connection"
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _schema() -> str:
    schema: str | None = context.get_context().version_table_schema
    assert schema is not None, "env.py names the schema"
    return schema
