"""Sends the tasks that examine a folder, and gathers what they return. This is the client's side; it may wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from celery import chain, group
from celery.exceptions import TimeoutError as ResultTimeout
from celery.result import AsyncResult

from celery_app.documents import FoundDocument, document_path
from celery_app.entries import Entry, Recheck, new_entry
from celery_app.tasks import analyse, check, collect, recheck

R = TypeVar("R")

#: How the error of an entry begins whose task failed; other errors are the document's own.
TASK_FAILED = "the task failed: "

#: Smaller documents first, so that the first results come soon: sizes in bytes, and the priority of what is smaller.
_PRIORITIES = ((4_096, 7), (16_384, 6), (65_536, 5), (262_144, 4))


def priority_of(name: str, size_bytes: int) -> int:
    """Return the priority of a document, 9 the most urgent: the README of the root, other READMEs, then by size."""
    folder, _, file = name.rpartition("/")
    if file.lower().startswith("readme."):
        return 8 if folder else 9
    return next((priority for limit, priority in _PRIORITIES if size_bytes < limit), 3)


def send_collect(root: str, documents: Iterable[FoundDocument]) -> dict[str, AsyncResult[Entry]]:
    """Have documents collected, each at most once at a time, whoever asks for it.

    Returns:
        For each name the result to wait for; that of the job already there where it was asked for before.
    """
    return {
        document.name: collect.apply_async(
            (root, document.name),
            **_keyed(f"collect:{document_path(root, document.name)}"),
            priority=priority_of(document.name, document.size_bytes),
        )
        for document in documents
    }


def send_inspect(entries: Sequence[Entry]) -> dict[str, AsyncResult[Entry]]:
    """Have collected documents analysed and their links checked: a group with a chain for each document."""
    steps = []
    for entry in entries:
        size_bytes = entry["fingerprint"]["size_bytes"] if entry["fingerprint"] else 0
        priority = priority_of(entry["name"], size_bytes)
        steps.append(chain(analyse.s(entry).set(priority=priority), check.s().set(priority=priority)))
    sent: Any = group(steps).apply_async()  # a GroupResult, whatever the stubs say
    return dict(zip((entry["name"] for entry in entries), sent.results, strict=True))


def send_recheck(root: str, entries: Sequence[Entry], countdown_seconds: float) -> AsyncResult[Recheck]:
    """Have the documents looked at again after a while; one look per folder may be waiting at a time."""
    return recheck.apply_async((list(entries),), countdown=countdown_seconds, **_keyed(f"recheck:{root}"))


@dataclass(frozen=True)
class Patience:
    """How long results are waited for.

    ``deadline`` is a moment on ``time.monotonic()``. ``check`` is called about once a second, and raises where there
    is nothing left to wait for because the worker has ended.
    """

    deadline: float
    check: Callable[[], None]


def wait_for(result: AsyncResult[R], patience: Patience, *, propagate: bool = True) -> R:
    """Return the result of a task; with ``propagate=False`` the exception of one that failed.

    Raises:
        celery.exceptions.TimeoutError: the deadline has passed.
    """
    while True:
        left_seconds = patience.deadline - time.monotonic()
        try:
            return result.get(timeout=min(1.0, max(0.1, left_seconds)), propagate=propagate)
        except ResultTimeout:
            patience.check()
            if left_seconds <= 0:
                raise


def gather(
    root: str, results: dict[str, AsyncResult[Entry]], patience: Patience, on_result: Callable[[str], None]
) -> list[Entry]:
    """Wait for the entries of documents; a task that failed gives an entry with the error.

    Args:
        root: the folder under examination.
        results: for each document's name the result to wait for.
        patience: how long to wait for all of them together.
        on_result: called with the name of each document whose result is there.

    Raises:
        celery.exceptions.TimeoutError: the deadline has passed.
    """
    entries = []
    for name, result in results.items():
        outcome: Any = wait_for(result, patience, propagate=False)
        if isinstance(outcome, BaseException):
            outcome = new_entry(root, name, error=f"{TASK_FAILED}{type(outcome).__name__}: {outcome}")
        on_result(name)
        entries.append(outcome)
    return entries


def _keyed(key: str) -> dict[str, Any]:
    """Return the publishing option for a dedupe key; brokers that do not know it carry it along unused."""
    return {"dedupe_key": key}
