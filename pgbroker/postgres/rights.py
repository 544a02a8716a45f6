"""What the role of workers and publishers may do in the schema; it runs no DDL and owns nothing."""

from __future__ import annotations

from pgbroker.postgres.connection import Session
from pgbroker.postgres.revisions import VERSION_TABLE
from pgbroker.postgres.sql_files import quote_identifier

#: On every table. TRUNCATE empties the day partitions of the history.
TABLE_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")


def runtime_grants(schema: str, role: str) -> str:
    """The statements, one a line, that let a role work with the schema; for the schema's owner to run.

    The default privileges are for tables that a later upgrade adds.
    """
    place, who = quote_identifier(schema), quote_identifier(role)
    rights = ", ".join(TABLE_RIGHTS).lower()
    return "\n".join(
        [
            f"grant usage on schema {place} to {who};",
            f"grant {rights} on all tables in schema {place} to {who};",
            f"revoke insert, update, delete, truncate on {place}.{VERSION_TABLE} from {who};",
            f"grant usage on all sequences in schema {place} to {who};",
            f"grant execute on all routines in schema {place} to {who};",
            f"alter default privileges in schema {place} grant {rights} on tables to {who};",
            f"alter default privileges in schema {place} grant usage on sequences to {who};",
            f"alter default privileges in schema {place} grant execute on routines to {who};",
        ]
    )


def missing_rights(session: Session) -> list[str]:
    """What the session's role may not do in the schema and has to; an empty list if nothing is missing.

    Returns:
        Pieces such as ``"UPDATE on jobs_live"``, sorted; just ``"USAGE on the schema"`` if that is missing.
    """
    schema = session.options.schema
    usage = session.query("select has_schema_privilege(oid, 'USAGE') from pg_namespace where nspname = %s", [schema])
    if not (usage and usage[0][0]):
        return ["USAGE on the schema"]
    rows = session.query(_MISSING, [VERSION_TABLE, list(TABLE_RIGHTS), schema])
    return [str(row[0]) for row in rows]


# has_sequence_privilege fails for what is no sequence, hence the case
_MISSING = """
with given as (
    select oid as place, %s as version_table, %s::text[] as rights from pg_namespace where nspname = %s)
select r.name || ' on ' || c.relname
  from given, pg_class c, unnest(rights) r (name)
 where c.relnamespace = place and c.relkind in ('r', 'p') and (r.name = 'SELECT' or c.relname <> version_table)
   and not has_table_privilege(c.oid, r.name)
union all
select 'SELECT on ' || c.relname from given, pg_class c
 where c.relnamespace = place and c.relkind = 'v' and not has_table_privilege(c.oid, 'SELECT')
union all
select 'USAGE on ' || c.relname from given, pg_class c
 where c.relnamespace = place and case c.relkind when 'S' then not has_sequence_privilege(c.oid, 'USAGE') end
union all
select 'EXECUTE on ' || p.proname from given, pg_proc p
 where p.pronamespace = place and not has_function_privilege(p.oid, 'EXECUTE')
 order by 1
"""
