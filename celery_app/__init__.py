"""The sample application: it checks the Markdown documents of a folder with a few honest Celery tasks.

``celery -A celery_app worker`` runs it as it is, on an embedded Postgres server in ``.pgbroker/`` beside this
package. ``PGBROKER_URL`` names another server; ``python -m celery_app.demo`` shows the whole of it at work.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from celery import Celery

#: The folder that holds this package: the project's own root.
ROOT = Path(__file__).resolve().parent.parent


def embedded_url(folder: Path) -> str:
    """Return the URL of an embedded server whose data lie in ``folder``."""
    return f"pgbroker+embedded://{quote(str(folder))}"


#: Broker and result backend alike.
URL = os.environ.get("PGBROKER_URL") or embedded_url(ROOT / ".pgbroker")

app = Celery(
    "celery_app",
    broker=URL,
    backend=URL,
    task_cls="pgbroker:Task",
    include=["celery_app.tasks"],
    broker_connection_retry_on_startup=True,
    # Documents are small and differ in urgency: a worker that hoards messages would defeat the priorities.
    worker_prefetch_multiplier=1,
)
celery = app
