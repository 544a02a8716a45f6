"""How commands print: aligned tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import click

#: Width of a table that goes into a file or a pipe, in characters.
PIPE_WIDTH = 160

#: Least width that is left for the last column.
_LAST_MIN = 20


#: The option ``--json`` of every command that reads.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: Any) -> None:
    """Print dataclasses, dicts and lists of them as JSON, times in ISO 8601."""
    click.echo(json.dumps(value, default=_plain, indent=2, ensure_ascii=False))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under their heads; numbers stand to the right, an open end of the last column is cut.

    Args:
        heads: Title of each column.
        rows: Cells; ``None`` becomes ``-``, a time is printed to the second.
    """
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    is_number = [all(isinstance(row[at], int | float | None) for row in rows) for at in range(len(heads) - 1)]
    last = max(_LAST_MIN, _width() - sum(widths[:-1]) - 2 * (len(heads) - 1))

    def line(texts: Sequence[str]) -> str:
        *first, end = texts
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(first, widths, is_number, strict=False)
        ]
        return "  ".join([*padded, shorten(end, last)]).rstrip()

    click.echo(click.style(line(heads), bold=True))
    for row in cells:
        click.echo(line(row))


def cell(value: Any) -> str:
    """A value as it stands in a table: one line without control characters."""
    if value is None:
        return "-"
    if isinstance(value, dt.datetime):
        return moment(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value)) or "-"
    return " ".join("".join(sign if sign.isprintable() else " " for sign in str(value)).split())


def moment(time: dt.datetime) -> str:
    """A time to the second, in UTC."""
    return f"{time.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}Z"


def shorten(text: str, width: int) -> str:
    """The text, cut to a width."""
    return text if len(text) <= width else text[: width - 3] + "..."


def plural(count: int, noun: str) -> str:
    """A count and its noun: ``1 job``, ``2 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no place in JSON")
