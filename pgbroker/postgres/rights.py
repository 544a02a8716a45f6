"""What the role of workers and publishers may do in the schema, as SQL; it needs no DDL and owns nothing."""

from __future__ import annotations

from pgbroker.postgres.sql_files import quote_identifier

#: On every table. TRUNCATE empties the day partitions of the history.
TABLE_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")


def runtime_grants(schema: str, role: str) -> str:
    """The statements, in one line, that let the role work with the schema once it is migrated.

    Functions are executable by everybody who may use the schema, unless default privileges say otherwise.
    """
    place, who = quote_identifier(schema), quote_identifier(role)
    return (
        f"grant usage on schema {place} to {who}; "
        f"grant {', '.join(TABLE_RIGHTS).lower()} on all tables in schema {place} to {who}; "
        f"grant usage on all sequences in schema {place} to {who}; "
        f"grant execute on all functions in schema {place} to {who};"
    )
