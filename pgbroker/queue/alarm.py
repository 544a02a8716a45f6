"""The alarm clock of a thread that also listens to its connection."""

from __future__ import annotations

import os
import select
from typing import Any

from pgbroker.postgres import native


class Alarm:
    """Lets a real thread sleep until somebody rings, a descriptor becomes readable, or the time is over.

    Sleeping is for one thread, ringing for any; a ring before the sleep is not lost.
    """

    def __init__(self) -> None:
        self._poll: Any = native.original("select", "poll")
        self._reader, self._writer = os.pipe()
        self._pid = os.getpid()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._is_rung = False

    def ring(self) -> None:
        """End the sleep, or the next one."""
        if self._is_rung or self._pid != os.getpid():
            return
        self._is_rung = True
        os.write(self._writer, b"x")

    def sleep(self, seconds: float, fileno: int | None = None) -> None:
        """Sleep at most so many seconds; ``fileno``: a descriptor whose news end the sleep too."""
        poller = self._poll()
        poller.register(self._reader, select.POLLIN)
        if fileno is not None:
            poller.register(fileno, select.POLLIN)
        poller.poll(max(0.0, seconds) * 1000)
        try:
            os.read(self._reader, 64)
        except BlockingIOError:
            pass
        self._is_rung = False

    def __del__(self, close: Any = os.close) -> None:
        for end in (self._reader, self._writer):
            close(end)
