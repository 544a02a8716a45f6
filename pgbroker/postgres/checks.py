"""Looks whether a database is fit for pgbroker, and says what to do where it is not. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres import migrate, sql_files
from pgbroker.postgres.connection import Session
from pgbroker.postgres.revisions import HEAD
from pgbroker.postgres.rights import missing_rights, runtime_grants

#: PostgreSQL's major versions we test with: older ones are refused, newer ones get a warning.
OLDEST_SERVER, NEWEST_SERVER = 14, 18

#: Age in seconds from which an open transaction is worth a warning: it keeps dead rows in our tables.
OLD_TRANSACTION_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Args:
        name: Which check, in one word.
        level: ``ok``, ``warning`` (works, but look at it) or ``error`` (will not work).
        text: What was found and, unless it is well, what to do.
    """

    name: str
    level: Literal["ok", "warning", "error"]
    text: str

    @property
    def ok(self) -> bool:
        """Whether pgbroker works in spite of it: true for warnings too."""
        return self.level != "error"


def check(options: Options) -> list[Finding]:
    """Run every check that makes sense; the later ones need a schema.

    Raises:
        DatabaseUnreachable: No server there, so that nothing can be said.
    """
    session = Session(options, "check")
    try:
        findings = [_server(session), _writable(session), _schema(session)]
        rights = _rights(session)
        if rights is not None:
            findings.append(rights)
        if findings[2].ok:
            findings += [_functions(session), _history(session)]
        return findings + list(_old_transactions(session)) + list(_prepared_transactions(session))
    finally:
        session.close()


def _server(session: Session) -> Finding:
    number, text = session.query(
        "select current_setting('server_version_num')::int, current_setting('server_version')"
    )[0]
    major = number // 10000
    if major < OLDEST_SERVER:
        return Finding("server", "error", f"PostgreSQL {text} is too old; upgrade it to {OLDEST_SERVER} or newer")
    if major > NEWEST_SERVER:
        return Finding("server", "warning", f"PostgreSQL {text} is newer than what this version was tested with")
    return Finding("server", "ok", f"PostgreSQL {text}")


def _writable(session: Session) -> Finding:
    is_standby, is_read_only = session.query(
        "select pg_is_in_recovery(), current_setting('transaction_read_only')::boolean"
    )[0]
    if is_standby:
        return Finding(
            "writable", "error", "the server is a standby; name the primary (target_session_attrs=read-write)"
        )
    if is_read_only:
        return Finding("writable", "error", "transactions are read-only here; see default_transaction_read_only")
    return Finding("writable", "ok", "the server takes writes")


def _schema(session: Session) -> Finding:
    schema = session.options.schema
    try:
        found = migrate.read_revision(session)
    except errors.PermissionDenied as exc:
        return Finding("schema", "error", " ".join(str(exc).split()))
    if found == HEAD:
        return Finding("schema", "ok", f'schema "{schema}" is at revision {found}')
    reason = migrate.refusal(session, found)
    if reason is None:
        return Finding(
            "schema", "warning", f'schema "{schema}" is at revision {found}, newer than {HEAD}, and still fits'
        )
    return Finding("schema", "error", str(reason))


def _rights(session: Session) -> Finding | None:
    schema = session.options.schema
    role, exists = session.query("select current_user, exists (select from pg_namespace where nspname = %s)", [schema])[
        0
    ]
    if not exists:
        return None
    missing = missing_rights(session)
    if not missing:
        return Finding("rights", "ok", f'role "{role}" may do all it has to')
    shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    grants = runtime_grants(schema, role)
    return Finding("rights", "error", f'role "{role}" lacks {shown}; let the owner of the schema run:\n{grants}')


def _functions(session: Session) -> Finding:
    rows = session.query(
        "select proname from pg_proc where pronamespace = (select oid from pg_namespace where nspname = %s)",
        [session.options.schema],
    )
    missing = sorted(set(sql_files.function_names()) - {row[0] for row in rows})
    if missing:
        return Finding(
            "functions", "error", f"missing: {', '.join(missing)}; install them with: celery -A APP pgbroker migrate"
        )
    return Finding("functions", "ok", f"all {len(sql_files.function_names())} are there")


def _history(session: Session) -> Finding:
    from pgbroker.postgres.schema import HISTORY_SLOTS

    count = session.query(
        "select count(*) from pg_inherits i join pg_class c on c.oid = i.inhparent"
        " join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = 'job_history'",
        [session.options.schema],
    )[0][0]
    if count != HISTORY_SLOTS:
        return Finding(
            "history",
            "error",
            f"{count} of {HISTORY_SLOTS} day partitions of job_history are there, and no job can finish on the other "
            "days; restore the missing ones from a backup of the schema",
        )
    return Finding("history", "ok", f"all {HISTORY_SLOTS} day partitions are there")


def _old_transactions(session: Session) -> Iterator[Finding]:
    """Open transactions; other roles' sessions show their age only to members of pg_read_all_stats."""
    rows = session.query(
        "select pid, usename, application_name, state, extract(epoch from clock_timestamp() - xact_start)::bigint"
        " from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
        " and xact_start < clock_timestamp() - make_interval(secs => %s) order by xact_start",
        [OLD_TRANSACTION_SECONDS],
    )
    for pid, role, application, state, seconds in rows:
        yield Finding(
            "transactions",
            "warning",
            f'pid {pid} (role "{role}", application "{application}", {state}) has held a transaction open for '
            f"{seconds} s, which keeps dead rows in the tables; end it with: select pg_terminate_backend({pid})",
        )
    if not rows:
        yield Finding("transactions", "ok", f"none visible is open for more than {OLD_TRANSACTION_SECONDS} s")


def _prepared_transactions(session: Session) -> Iterator[Finding]:
    rows = session.query(
        "select gid, owner, extract(epoch from clock_timestamp() - prepared)::bigint from pg_prepared_xacts"
        " where database = current_database() and prepared < clock_timestamp() - make_interval(secs => %s)",
        [OLD_TRANSACTION_SECONDS],
    )
    for gid, owner, seconds in rows:
        yield Finding(
            "prepared",
            "warning",
            f'transaction {gid!r} of role "{owner}" was prepared {seconds} s ago and keeps dead rows in the tables; '
            "end it with commit prepared or rollback prepared",
        )
    if not rows:
        yield Finding("prepared", "ok", f"no transaction has been prepared for more than {OLD_TRANSACTION_SECONDS} s")
