"""Shows the whole of it at work: a server, a worker, tasks, their results, and the jobs table as it ends.

``python -m celery_app.demo [FOLDER]`` examines the Markdown documents of a folder, this project's own by default.
It runs on an embedded server in ``.pgbroker-demo/``, or on the one that ``PGBROKER_URL`` names.
Exit codes: 0, 1 something failed, 2 there is nothing to examine, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from celery.exceptions import CeleryError
from celery.exceptions import TimeoutError as ResultTimeout
from celery.result import AsyncResult
from kombu.exceptions import KombuError
from sqlalchemy.exc import SQLAlchemyError

from celery_app import ROOT, app, embedded_url, pipeline
from celery_app.documents import FolderError, FoundDocument, find_documents
from celery_app.entries import Entry
from celery_app.jobs_table import JobsTable
from celery_app.pipeline import Patience
from celery_app.tasks import add, build
from celery_app.worker_process import WorkerError, WorkerProcess, running_worker
from pgbroker.errors import PgBrokerError

try:
    from celery_app.screen import Screen
except ModuleNotFoundError as error:  # pragma: no cover
    sys.exit(f"the demonstration needs {error.name}: run it with `make demo`, or pip install -e '.[dev]' first")

WORK_FOLDER = ROOT / ".pgbroker-demo"
START_SECONDS = 30
RESULTS_SECONDS = 60
STOP_SECONDS = 10
RECHECK_SECONDS = 2


class DemoError(Exception):
    """A step of the demonstration did not do what it should; the message says which."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM.

    Of a class of its own, because Python ends itself with SIGINT once a plain KeyboardInterrupt has passed through
    ``exec`` of a text, which happens in imports, even if it was caught (Python/pythonrun.c, run_eval_code_obj).
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m celery_app.demo", description="Check Markdown documents.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT, help="what to examine (this project)")
    parser.add_argument("--report", type=Path, default=ROOT / "report", help="folder for the report (report/)")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    screen = Screen()
    try:
        _run(screen, options.folder.resolve(), options.report.resolve())
    except FolderError as error:
        screen.say(f"Nothing to examine: {error}.")
        return 2
    except ResultTimeout as error:
        screen.say(f"Failed: a result was not there after {RESULTS_SECONDS} seconds ({error})")
        return 1
    except (DemoError, WorkerError) as error:
        screen.say(f"Failed: {error}")
        return 1
    except (PgBrokerError, SQLAlchemyError, CeleryError, KombuError, OSError) as error:
        screen.say(f"Failed: {type(error).__name__}: {error}")
        return 1
    except Interrupted:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        screen.say("Interrupted; everything has been stopped.")
        return 130
    return 0


def _run(screen: Screen, folder: Path, report: Path) -> None:
    documents, problems = find_documents(folder)
    if not documents and not problems:
        raise FolderError(f"there are no Markdown files in {str(folder)!r}")
    WORK_FOLDER.mkdir(exist_ok=True)
    url = os.environ.get("PGBROKER_URL") or embedded_url(WORK_FOLDER / "server")
    app.conf.update(broker_url=url, result_backend=url)
    log = WORK_FOLDER / "worker.log"
    screen.say(f"Broker and result backend: {app.connection_for_write().as_uri()}")
    jobs = JobsTable(url)
    began = time.monotonic()
    with running_worker(url, log, start_seconds=START_SECONDS, stop_seconds=STOP_SECONDS) as worker:
        screen.say(f"Worker: process {worker.pid}, ready after {time.monotonic() - began:.1f} s, log in {log}")
        entries = _examine(screen, worker, str(folder), documents, report, problems)
        if not jobs.wait_until_settled(timeout_seconds=5):
            raise DemoError("there are jobs that do not settle")
        screen.documents(entries)
        screen.rows("pgbroker.job_log", ("status", "task_name", "jobs"), jobs.counts())
        columns = ("job_id", "task_name", "status", "priority", "attempts", "dedupe_key", "finished_at", "last_error")
        screen.rows("The last ten jobs", columns, jobs.latest(10))
        screen.say(f"Report: {report / 'index.html'}")
        worker.check_alive()
    failed = [entry["name"] for entry in entries if (entry["error"] or "").startswith(pipeline.TASK_FAILED)]
    if failed:
        raise DemoError(f"the tasks for {', '.join(failed)} failed, see {log}")
    screen.say("Done; the worker has been stopped.")


def _examine(
    screen: Screen,
    worker: WorkerProcess,
    root: str,
    documents: Sequence[FoundDocument],
    report: Path,
    problems: Sequence[Entry],
) -> list[Entry]:
    patience = Patience(time.monotonic() + RESULTS_SECONDS, worker.check_alive)
    screen.say(f"add.delay(2, 3).get() -> {pipeline.wait_for(add.delay(2, 3), patience)}")

    with screen.progress("collect", len(documents)) as tick:
        collected = pipeline.gather(root, pipeline.send_collect(root, documents), patience, tick)
    readable = [entry for entry in collected if entry["error"] is None]
    unreadable = [entry for entry in collected if entry["error"] is not None]
    with screen.progress("analyse and check", len(readable)) as tick:
        checked = pipeline.gather(root, pipeline.send_inspect(readable), patience, tick)

    recheck = pipeline.send_recheck(root, checked, RECHECK_SECONDS)
    again = pipeline.send_recheck(root, checked, RECHECK_SECONDS)
    screen.say(f"Another look at the files is due in {RECHECK_SECONDS} s{_about_duplicate(again)}.")
    entries = sorted([*problems, *unreadable, *checked], key=lambda entry: entry["name"])
    pipeline.wait_for(build.delay(entries, str(report)), patience)

    outcome = pipeline.wait_for(recheck, patience)
    screen.say(f"Another look: {len(outcome['changed'])} changed, {outcome['unchanged']} as they were.")
    if outcome["changed"]:
        results: dict[str, AsyncResult[Entry]] = {
            name: app.AsyncResult(task_id) for name, task_id in outcome["task_ids"].items()
        }
        with screen.progress("checked anew", len(results)) as tick:
            fresh = {entry["name"]: entry for entry in pipeline.gather(root, results, patience, tick)}
        entries = [fresh.get(entry["name"], entry) for entry in entries]
        pipeline.wait_for(build.delay(entries, str(report)), patience)
    return entries


def _about_duplicate(result: AsyncResult[object]) -> str:
    if getattr(result, "duplicate", False):
        return "; asking for it twice stored it once, its dedupe key is taken"
    return ""


def _interrupt(signal_number: int, frame: object) -> NoReturn:
    raise Interrupted


if __name__ == "__main__":
    sys.exit(main())
