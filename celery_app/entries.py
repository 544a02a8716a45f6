"""What the tasks hand to each other: plain dictionaries, because they travel as JSON."""

from __future__ import annotations

from typing import TypedDict


class Fingerprint(TypedDict):
    """Tells whether a file has changed: its size in bytes and the SHA-256 of its content in hexadecimal."""

    size_bytes: int
    sha256: str


class Heading(TypedDict):
    """One heading: level 1..6, plain text, anchor as GitHub makes it, and the line it stands on (from 1)."""

    level: int
    text: str
    slug: str
    line: int


class Link(TypedDict):
    """One link or image: its target as written (percent-encoded) and its line (from 1)."""

    target: str
    line: int


class BrokenLink(Link):
    """A link that leads nowhere, and why."""

    reason: str


class Entry(TypedDict):
    """What is known about one document; ``error`` says why nothing more could be found out.

    ``root`` is the folder under examination (absolute), ``name`` the document's path below it with ``/``.
    """

    root: str
    name: str
    error: str | None
    fingerprint: Fingerprint | None
    words: int
    headings: list[Heading]
    links: list[Link]
    broken: list[BrokenLink]


class Recheck(TypedDict):
    """What a later look found: names of changed and of no longer readable documents, how many are as they were.

    ``task_ids`` maps each changed document to the id of the task whose result is its new entry.
    """

    changed: list[str]
    unreadable: list[str]
    unchanged: int
    task_ids: dict[str, str]


class BuiltReport(TypedDict):
    """Where the report lies (absolute path), and what it counts."""

    path: str
    documents: int
    broken_links: int
    errors: int


def new_entry(root: str, name: str, *, error: str | None = None) -> Entry:
    """Return the entry of a document of which nothing is known yet, or that cannot be read."""
    return {
        "root": root,
        "name": name,
        "error": error,
        "fingerprint": None,
        "words": 0,
        "headings": [],
        "links": [],
        "broken": [],
    }
