"""Workers that are there to be killed, and how: the main process alone, or children of it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Kill:
    """One round.

    Attributes:
        at: Seconds since the epoch, just before the signal.
        what: ``main``, or ``children``.
        main: Pid of the worker's main process.
        victims: Pids that got the signal.
        pool: The worker's pool.
        is_namesake: The worker bore the node name of one that was killed before.
    """

    at: float
    what: str
    main: int
    victims: tuple[int, ...]
    pool: str
    is_namesake: bool


class Victim:
    """One ``celery worker``, leader of a session of its own."""

    def __init__(
        self, folder: Path, environment: dict[str, str], pool: str, concurrency: int, name: str, *, is_namesake: bool
    ) -> None:
        self.pool, self.name, self.is_namesake = pool, name, is_namesake
        command = [sys.executable, "-m", "celery", "-A", "chaos_app", "worker", "-P", pool, "-c", str(concurrency)]
        self._log = folder / f"{name}.log"
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "-n", f"{name}@%h", "-l", "warning"],
                cwd=HERE,
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        """Its log."""
        return self._log.read_bytes()[self._log_from :].decode(errors="replace")

    def children(self) -> list[int]:
        """Pids of the pool's processes that live."""
        return [pid for pid, parent, state in _processes() if parent == self.pid and state not in "ZX"]

    def kill_main(self) -> Kill:
        """Kill the main process; the kernel ends its children (PR_SET_PDEATHSIG, set by Celery in each)."""
        kill = self._kill("main", (self.pid,))
        self.process.wait(10)
        return kill

    def kill_children(self, pids: list[int]) -> Kill:
        """Kill pool processes; the main process has to notice."""
        return self._kill("children", tuple(pids))

    def _kill(self, what: str, pids: tuple[int, ...]) -> Kill:
        kill = Kill(time.time(), what, self.pid, pids, self.pool, self.is_namesake)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has just ended by itself
        return kill

    def clear_away(self) -> None:
        """End what is left of its session: children that were born too late to be told of their parent's death."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)


def environment(url: str, diary: Path, options: dict[str, Any]) -> dict[str, str]:
    """What :mod:`chaos_app` is configured by."""
    return {"CHAOS_URL": url, "CHAOS_DIARY": str(diary), "CHAOS_OPTIONS": json.dumps(options)}


def _processes() -> list[tuple[int, int, str]]:
    """Pid, parent and state of each process. Source: proc_pid_stat(5)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" (")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent, *_ = rest.rpartition(")")[2].split()
        found.append((int(pid), int(parent), state))
    return found
