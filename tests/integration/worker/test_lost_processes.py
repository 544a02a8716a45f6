"""Pool processes that die together, before their worker has read that their tasks have begun."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from state_site import States
from worker_site import Site, wait_until

ROUNDS = 8


def pool_processes(pid: int) -> list[int]:
    """The child processes of a worker."""
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks up processes in /proc")
def test_a_task_begins_once(site: Site) -> None:
    """Acknowledged early. One process begins its task and dies while the worker sees to others that are dead."""
    states = States(site, "prefork")
    worker = states.worker(6, worker_prefetch_multiplier=1)
    for _ in range(ROUNDS):
        wait_until(lambda: len(pool_processes(worker.pid)) == 6, 20, site.describe)
        *others, last = pool_processes(worker.pid)
        for child in (*others, last):
            os.kill(child, signal.SIGSTOP)
        ids = [states.publish("early", "die_at_once") for _ in range(6)]
        wait_until(lambda ids=ids: all(f"[{i}] received" in worker.output() for i in ids), 10, site.describe)
        assert states.app.control.ping(timeout=5, limit=1)  # by then the tasks are in the pipes
        for child in others:
            os.kill(child, signal.SIGKILL)
        os.kill(last, signal.SIGCONT)
        states.wait_status("DEAD", *ids, seconds=30)
        assert [states.runs(task_id) for task_id in ids] == [1] * 6
    states.close()
