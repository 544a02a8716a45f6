"""What the demonstration shows: progress bars and tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from celery_app.entries import Entry

#: Where the output is no terminal there is no width to ask for.
_PLAIN_WIDTH = 120


class Screen:
    """Prints for people; everything that comes from documents or errors is escaped."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=_PLAIN_WIDTH)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(escape(text), soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[str], None]]:
        """Show how many of ``total`` are done; the block gets a function to call with the name of each."""
        if not self.console.is_terminal:
            done: list[str] = []
            yield done.append
            self.say(f"{what}: {len(done)} of {total}")
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(what, total=total)
            yield lambda name: progress.advance(task)

    def documents(self, entries: Sequence[Entry]) -> None:
        """Show a table of all documents, and below it every broken link."""
        table = Table(title="Documents", title_justify="left")
        table.add_column("file", overflow="fold")
        for name in ("words", "headings", "links", "broken links"):
            table.add_column(name, justify="right")
        for entry in entries:
            if entry["error"] is not None:
                table.add_row(escape(entry["name"]), f"[red]{escape(entry['error'])}[/]")
                continue
            broken = len(entry["broken"])
            counts = (entry["words"], len(entry["headings"]), len(entry["links"]))
            cells = [str(count) for count in counts]
            table.add_row(escape(entry["name"]), *cells, f"[red]{broken}[/]" if broken else "0")
        self.console.print(table)
        for entry in entries:
            for link in entry["broken"]:
                self.say(f"{entry['name']}:{link['line']}: {link['target']}: {link['reason']}")

    def rows(self, title: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Show rows that can be indexed by column name as a table."""
        table = Table(title=title, title_justify="left")
        for name in columns:
            table.add_column(name, overflow="fold", no_wrap=name == "task_name")
        for row in rows:
            table.add_row(*(_text(row[name]) for name in columns))
        self.console.print(table)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if hasattr(value, "strftime"):
        return escape(f"{value:%H:%M:%S.%f}"[:-3])
    return escape(str(value))
