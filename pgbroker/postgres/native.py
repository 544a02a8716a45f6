"""Thread primitives that gevent has not replaced.

The lease thread must go on while a task hogs the CPU or the event loop, so it is a real thread also in a process
that gevent has patched, and whatever it shares with greenlets is guarded by a real lock. Such a lock is held for
a few operations in memory only: never across a statement, a sleep or anything else that lets greenlets switch.
"""

from __future__ import annotations

import sys
from typing import Any


def original(module: str, name: str) -> Any:
    """What ``module.name`` was before gevent or eventlet patched it; itself where nobody did."""
    if "gevent.monkey" in sys.modules:
        from gevent.monkey import get_original

        return get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        from eventlet.patcher import original as unpatched

        return getattr(unpatched(module), name)
    return getattr(__import__(module), name)


def start_thread(target: Any, *args: Any) -> None:
    """Run ``target`` in a real thread of its own; it ends with the process."""
    original("_thread", "start_new_thread")(target, args)


def new_lock() -> Any:
    """A real, reentrant lock: a signal handler (a cold stop) may come upon its own thread holding it.

    Whatever it guards must bear such an interruption: iterate over copies, forget with a default.
    """
    return original("_thread", "RLock")()
