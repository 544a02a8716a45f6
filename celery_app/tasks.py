"""The tasks. None waits for another, and those that touch files may safely run twice, so they acknowledge late.

A document that cannot be read does not fail its task: the entry that comes back says why. What may pass, such as a
file somebody is just writing, is tried again with back-off.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from celery import Task, chain

from celery_app import app, report
from celery_app.documents import DocumentError, document_path, read_document
from celery_app.entries import BuiltReport, Entry, Recheck, new_entry
from celery_app.links import LinkChecker
from celery_app.markdown import parse

P = ParamSpec("P")
R = TypeVar("R")


def patient(function: Callable[P, R]) -> Task[P, R]:
    """Make a task of a function that reads or writes files: it may run twice, and disturbances are waited out."""
    options: dict[str, Any] = {
        "acks_late": True,
        "reject_on_worker_lost": True,
        # 1, 2, 4 and 8 seconds (with jitter) are enough for any editor to finish.
        "autoretry_for": (OSError,),
        "dont_autoretry_for": (PermissionError, FileExistsError, NotADirectoryError),
        "retry_backoff": 1,
        "max_retries": 4,
        "soft_time_limit": 30,
        "time_limit": 40,
    }
    task: Task[P, R] = app.task(**options)(function)
    return task


@app.task
def add(x: float, y: float) -> float:
    """Return the sum of two numbers: the shortest way to see that everything works."""
    return x + y


@patient
def collect(root: str, name: str) -> Entry:
    """Read a document and note its fingerprint; the first task for every document."""
    try:
        document = read_document(document_path(root, name))
    except DocumentError as error:
        return new_entry(root, name, error=str(error))
    return {**new_entry(root, name), "fingerprint": document.fingerprint}


@patient
def analyse(entry: Entry) -> Entry:
    """Add the words, headings and links of a collected document to its entry."""
    if entry["error"] is not None:
        return entry
    try:
        document = read_document(document_path(entry["root"], entry["name"]))
    except DocumentError as error:
        return new_entry(entry["root"], entry["name"], error=str(error))
    structure = parse(document.text)
    return {
        **entry,
        "fingerprint": document.fingerprint,  # it may have changed since it was collected
        "words": structure.words,
        "headings": structure.headings,
        "links": structure.links,
    }


@patient
def check(entry: Entry) -> Entry:
    """Add the broken ones among the links of an analysed document to its entry."""
    if entry["error"] is not None:
        return entry
    root, name = entry["root"], entry["name"]
    return {**entry, "broken": LinkChecker(Path(root), document_path(root, name)).broken(entry["links"])}


@patient
def build(entries: list[Entry], folder: str) -> BuiltReport:
    """Write the HTML report on all entries to ``index.html`` in the folder (an absolute path)."""
    path = report.write(sorted(entries, key=lambda entry: entry["name"]), Path(folder))
    return {
        "path": str(path),
        "documents": len(entries),
        "broken_links": sum(len(entry["broken"]) for entry in entries),
        "errors": sum(entry["error"] is not None for entry in entries),
    }


@patient
def recheck(entries: list[Entry]) -> Recheck:
    """Look at the documents again, and have those checked anew that have changed since.

    Nothing is waited for: the ids of the tasks that will hold the new entries are part of the result.
    """
    outcome: Recheck = {"changed": [], "unreadable": [], "unchanged": 0, "task_ids": {}}
    changed: list[Entry] = []
    for entry in entries:
        try:
            fingerprint = read_document(document_path(entry["root"], entry["name"])).fingerprint
        except DocumentError:
            fingerprint = None
        if fingerprint == entry["fingerprint"]:
            outcome["unchanged"] += 1
        elif fingerprint is None:
            outcome["unreadable"].append(entry["name"])
        else:
            changed.append(entry)
    # Published only after everything was looked at, so that a retry of this task publishes nothing twice.
    for entry in changed:
        steps = chain(collect.s(entry["root"], entry["name"]), analyse.s(), check.s())
        outcome["changed"].append(entry["name"])
        outcome["task_ids"][entry["name"]] = steps.apply_async().id
    return outcome
