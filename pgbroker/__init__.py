"""pgbroker: a Postgres broker and result backend for Celery.

Importing this package registers the URL schemes with kombu and does nothing else: what users reach for is
loaded on first use, so that a process that only needs the scheme does not pay for SQLAlchemy or Celery.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pgbroker.transport import scheme as _scheme

if TYPE_CHECKING:
    from pgbroker.errors import DedupeNotSupported, DuplicateJob, PgBrokerError, Unroutable
    from pgbroker.model import Job, JobStatus, QueueStats, compute_backoff
    from pgbroker.publishing.automatic import register_session
    from pgbroker.publishing.task import Task
    from pgbroker.publishing.transaction import transaction
    from pgbroker.queue.job_queue import JobQueue

__version__ = "0.1.0"

__all__ = [
    "DedupeNotSupported",
    "DuplicateJob",
    "Job",
    "JobQueue",
    "JobStatus",
    "PgBrokerError",
    "QueueStats",
    "Task",
    "Unroutable",
    "compute_backoff",
    "register_session",
    "transaction",
]

_HOMES = {
    "DedupeNotSupported": "pgbroker.errors",
    "DuplicateJob": "pgbroker.errors",
    "Job": "pgbroker.model",
    "JobQueue": "pgbroker.queue.job_queue",
    "JobStatus": "pgbroker.model",
    "PgBrokerError": "pgbroker.errors",
    "QueueStats": "pgbroker.model",
    "Task": "pgbroker.publishing.task",
    "Unroutable": "pgbroker.errors",
    "compute_backoff": "pgbroker.model",
    "register_session": "pgbroker.publishing.automatic",
    "transaction": "pgbroker.publishing.transaction",
}

_scheme.register()


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pgbroker' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
