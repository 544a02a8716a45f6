"""How fast a worker takes up jobs, and so how many it may fetch ahead of its prefetch window.

A round trip costs about the same for four jobs as for forty. A worker that runs a thousand short tasks a second
therefore fetches a few milliseconds' worth of work beyond its window and keeps it in the inbox, where Celery does
not see it: three to eight times fewer statements. A worker whose tasks take longer fetches nothing ahead, and what
turns out to lie waiting all the same (a long task among short ones) is given back by the lease thread.
"""

from __future__ import annotations

import time

#: Work fetched ahead, in seconds of the present pace.
AHEAD_SECONDS = 0.02

#: Never more jobs than that.
MOST_AHEAD = 64

#: The pace is measured over so many seconds.
SPAN_SECONDS = 0.05


class Pace:
    """Jobs handed to the consumers per second, of late."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._count = 0
        self._per_second = 0.0

    def handed_out(self) -> None:
        """One more job has gone to its consumer."""
        self._count += 1

    def ahead(self) -> int:
        """How many jobs may be fetched beyond the window now."""
        now = time.monotonic()
        elapsed = now - self._since
        if elapsed >= SPAN_SECONDS:
            self._per_second = self._count / elapsed
            self._since, self._count = now, 0
        return min(MOST_AHEAD, int(self._per_second * AHEAD_SECONDS))
