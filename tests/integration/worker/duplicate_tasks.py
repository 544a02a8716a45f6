"""Tasks for the tests of duplicates, of Celery's own class (``dup.plain.hold``) and of ours (``dup.ours.hold``).

A worker gets them by ``imports=["duplicate_tasks"]``; a test calls :func:`register` on its own application.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import celery
from app import record
from celery import Celery, chain, chord, group

import pgbroker

CLASSES = {"plain": celery.Task, "ours": pgbroker.Task}


def gate(record_path: str | Path) -> Path:
    """The file without which nobody passes."""
    return Path(f"{record_path}.gate")


def register(app: Celery) -> Celery:
    """Add the tasks to an application."""
    for name, cls in CLASSES.items():
        _register(app, f"dup.{name}", cls)
    return app


def _register(app: Celery, prefix: str, cls: type[Any]) -> None:
    @app.task(shared=False, bind=True, base=cls, name=f"{prefix}.hold")
    def hold(self: Any, *_: Any) -> str:
        """Run until the gate is open."""
        record("hold", task_id=self.request.id)
        until = time.monotonic() + 30
        while not gate(os.environ["PGB_APP_RECORD"]).exists() and time.monotonic() < until:
            time.sleep(0.02)
        return "held"

    @app.task(shared=False, bind=True, base=cls, name=f"{prefix}.replace")
    def replace(self: Any, by: str) -> None:
        kinds = {
            "task": lambda: hold.si(),
            "chain": lambda: chain(hold.si(), hold.si()),
            "group": lambda: group(hold.si(), hold.si()),
            "chord": lambda: chord([hold.si()], hold.si()),
        }
        self.replace(kinds[by]())

    @app.task(shared=False, bind=True, base=cls, name=f"{prefix}.retry", max_retries=1)
    def retry(self: Any) -> str:
        record("run", task_id=self.request.id)
        if not self.request.retries:
            raise self.retry(countdown=0.1)
        return "done"

    @app.task(shared=False, bind=True, base=cls, name=f"{prefix}.parent")
    def parent(self: Any) -> list[str]:
        ids = [hold.apply_async(dedupe_key="k", countdown=600).id for _ in range(2)]
        if cls is pgbroker.Task:
            try:
                hold.apply_async(dedupe_key="k", on_duplicate="raise")
            except pgbroker.DuplicateJob:
                record("refused")
        return ids


if "PGB_APP_URL" in os.environ:
    register(sys.modules["app"].app)
