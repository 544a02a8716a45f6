"""Results across processes: forks, and programs that gevent has patched."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, states

MakeApp = Callable[..., Celery]
Run = Callable[..., list[tuple[Any, ...]]]
WaitUntil = Callable[[Callable[[], object]], None]

WAITING = "select count(*) from pgbroker.waiters where task_id = %s"


def in_child(function: Callable[[], object]) -> int:
    """Fork, run the function in the child, and leave without cleaning up; returns the child's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException as exc:
            os.write(2, f"in the child: {exc!r}\n".encode())
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -9


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_parent_and_children_wait_after_a_fork(app: Celery, task_id: str, run: Run, wait_until: WaitUntil) -> None:
    app.backend.store_result(task_id + "warm", 1, states.SUCCESS)
    assert app.AsyncResult(task_id + "warm").get(timeout=5) == 1

    def wait_here() -> None:
        assert app.AsyncResult(task_id).get(timeout=15) == 1

    parent = threading.Thread(target=wait_here)
    parent.start()
    wait_until(lambda: run(WAITING, task_id) == [(1,)])  # the parent holds a listener, and it is being read
    children = [in_child(wait_here) for _ in range(3)]
    wait_until(lambda: run(WAITING, task_id) == [(4,)])
    app.backend.store_result(task_id, 1, states.SUCCESS)
    assert [exit_code(pid) for pid in children] == [0, 0, 0]
    parent.join()
    app.backend.store_result(task_id + "again", 2, states.SUCCESS)
    assert app.AsyncResult(task_id + "again").get(timeout=5) == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_goes_on_with_a_loop_of_its_parent(app: Celery, task_id: str, run: Run, wait_until: WaitUntil) -> None:
    ids = [f"{task_id}-{n}" for n in range(2)]
    app.backend.store_result(ids[0], 0, states.SUCCESS)
    pairs = app.backend.get_many(ids, timeout=15)
    assert next(pairs)[0] == ids[0]

    def go_on() -> None:
        assert [key for key, _ in pairs] == [ids[1]]

    pid = in_child(go_on)
    wait_until(lambda: run(WAITING, ids[1]) == [(1,)])
    app.backend.store_result(ids[1], 1, states.SUCCESS)
    assert exit_code(pid) == 0
    assert [key for key, _ in pairs] == [ids[1]]


GEVENT = """
    from gevent import monkey
    monkey.patch_all()
    import sys, time, threading
    import gevent
    from celery import Celery

    app = Celery(broker="memory://", backend=sys.argv[1])
    app.conf.result_backend_thread_safe = sys.argv[2] == "shared"
    app.backend.get_state("none")

    def wait(n):
        return app.AsyncResult(f"g{n}").get(timeout=15)

    ticks = []
    def tick():
        while True:
            ticks.append(time.monotonic())
            gevent.sleep(0.01)

    ticker = gevent.spawn(tick)
    waits = [gevent.spawn(wait, n) for n in range(30)]
    group = gevent.spawn(lambda: app.GroupResult("x", [app.AsyncResult(f"g{n}") for n in range(30)]).get(timeout=15))
    given_up = gevent.spawn(lambda: gevent.with_timeout(0.2, wait, "never", timeout_value="given up"))
    gevent.sleep(0.5)
    began = time.monotonic()
    for n in range(30):
        app.backend.store_result(f"g{n}", n, "SUCCESS")
    gevent.joinall([*waits, group, given_up], raise_error=True)
    took = time.monotonic() - began
    ticker.kill()
    assert [each.value for each in waits] == list(range(30)), [each.value for each in waits]
    assert group.value == list(range(30))
    assert given_up.value == "given up"
    assert took < 3, took
    gap = max(b - a for a, b in zip(ticks, ticks[1:]))
    assert gap < 0.5, f"other greenlets stood still for {gap} s"
    print("greenlets", "ok")
"""


@pytest.mark.parametrize("instances", ["own", "shared"])
def test_gevent(app: Celery, module_database: Any, run: Run, instances: str) -> None:
    pytest.importorskip("gevent")
    app.backend.get_state("none")
    run("delete from pgbroker.results where task_id like 'g%%'")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GEVENT), module_database.url, instances],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "greenlets ok"
    assert "Traceback" not in done.stderr
