"""When to look whether something has come in: at once after a wake-up, then less and less often."""

from __future__ import annotations

import time

#: Pauses between looks that find nothing, in seconds, before the wake-up and the slow poll are relied on. The first
#: looks close a gap: what another session commits between our look and our registration wakes nobody.
STAGES_SECONDS = (0.0, 0.02, 0.1, 0.5)


class Watch:
    """The watch over one kind of message (jobs, or mail).

    Attributes:
        has_news: Something is known, or must be assumed, to be there: fetch it.
        look_at: Otherwise the time of the next look, on the monotonic clock.

    Args:
        poll_seconds: Pause between looks when all is quiet.
    """

    def __init__(self, poll_seconds: float) -> None:
        self.poll_seconds = poll_seconds
        self.has_news = False
        self.look_at = 0.0
        self._stage = 0

    def wake(self) -> None:
        """Something has come in, or may have; the registration for wake-ups is used up."""
        self.has_news = True
        self.look_at = 0.0
        self._stage = 0

    def emptied(self, *, found_some: bool) -> None:
        """All there was has been fetched. If that was nothing at all, the next look stays where it was."""
        self.has_news = False
        if found_some:
            self.look_at = 0.0
            self._stage = 0

    def looked(self, *, is_there: bool, due_seconds: float | None = None) -> None:
        """A look is over; ``due_seconds``: the next job becomes due in so many seconds."""
        self._stage += 1
        pause = STAGES_SECONDS[self._stage] if self._stage < len(STAGES_SECONDS) else self.poll_seconds
        if due_seconds is not None:
            pause = min(pause, due_seconds)
        # also when something is there: somebody else may be taking it, and then a fetch finds nothing
        self.look_at = time.monotonic() + max(pause, 0.001)
        self.has_news = is_there

    def pause(self, seconds: float) -> None:
        """Do nothing for so long."""
        self.has_news = False
        self.look_at = time.monotonic() + seconds
