"""The ``.sql`` files of the schema, and how the configured schema's name gets into them.

In a file the prefix ``pgbroker.`` stands for the schema; the quoted name takes its place, in code and function bodies
as it is, inside a string literal with its own quotes doubled, so that any name will do.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

#: Comments, string literals, and the prefix where it stands in code. Function bodies lie between ``$$`` and are code.
_PIECES = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\bpgbroker\.")

_SQL = Path(__file__).parent / "migrations" / "sql"


def quote_identifier(name: str) -> str:
    """The name as an SQL identifier, always in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """The text as an SQL string literal (with ``standard_conforming_strings`` on, as it is by default)."""
    return "'" + text.replace("'", "''") + "'"


def in_statement(name: str) -> str:
    """The name as an SQL identifier for a statement that :class:`Session` runs, where ``%`` is written twice."""
    return quote_identifier(name).replace("%", "%%")


def render(text: str, schema: str) -> str:
    """The SQL of a file, with the schema's quoted name for each ``pgbroker.`` outside comments."""
    prefix = quote_identifier(schema) + "."

    def put_in(piece: re.Match[str]) -> str:
        found = piece[0]
        if found.startswith("--"):
            return found
        return found.replace("pgbroker.", prefix.replace("'", "''") if found.startswith("'") else prefix)

    return _PIECES.sub(put_in, text)


def tables_sql(name: str, schema: str) -> str:
    """The rendered file ``sql/tables/<name>.sql``, which belongs to one revision."""
    return render((_SQL / "tables" / f"{name}.sql").read_text("utf-8"), schema)


def function_names() -> list[str]:
    """Names of our SQL functions, sorted; each is the name of its file."""
    return [path.stem for path in _function_files()]


def functions_sql(schema: str) -> list[str]:
    """The rendered function files, in the order of their names."""
    return [render(path.read_text("utf-8"), schema) for path in _function_files()]


def functions_digest() -> str:
    """SHA-256 over all function files, in hex: changes when any function does."""
    digest = hashlib.sha256()
    for path in _function_files():
        digest.update(f"{path.name}\0{path.read_text('utf-8')}\0".encode())
    return digest.hexdigest()


def _function_files() -> list[Path]:
    return sorted((_SQL / "functions").glob("*.sql"))
