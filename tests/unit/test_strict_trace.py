"""What ``strict_start`` sends to pool processes with each task."""

from __future__ import annotations

import pickle

from celery.app.trace import fast_trace_task

from pgbroker.options import Options
from pgbroker.worker.strict_start import StrictTrace

OPTIONS = Options.from_url("pgbroker://proj:secret@localhost/proj?strict_start=true")


def test_a_pool_process_makes_it_once() -> None:
    sent = pickle.dumps(StrictTrace(OPTIONS, fast_trace_task, None))
    assert pickle.loads(sent) is pickle.loads(sent)
    assert pickle.dumps(pickle.loads(sent)) == sent


def test_it_shows_no_password() -> None:
    """Celery logs what it gives to a pool."""
    assert "secret" not in repr(StrictTrace(OPTIONS, fast_trace_task, None))
