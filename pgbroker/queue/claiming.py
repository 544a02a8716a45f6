"""Claims on their way to this process: a connection that breaks may swallow the answer to one that took effect.

Such jobs are held by us and we do not know it. Nobody renews them, so their leases would run out and a reaper would
give them back, more than a minute later by default. Once the server can be reached again, whatever it says we hold and
we do not know goes back at once instead.

That look must not meet a claim whose answer is still on its way to another connection of the same process: so it waits
until none is, and none begins meanwhile.
"""

from __future__ import annotations

from pgbroker.postgres import native
from pgbroker.queue.ledger import Ledger
from pgbroker.queue.store import Call


class Claiming:
    """Use from any thread or greenlet.

    Args:
        ledger: What the process knows that it holds.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = native.new_lock()
        self._in_flight = 0
        self._has_lost = self._is_looking = False

    def begin(self) -> bool:
        """A claim is about to be sent. ``False``: not now, somebody looks for lost ones."""
        with self._lock:
            if self._is_looking:
                return False
            self._in_flight += 1
            return True

    def end(self, *, is_lost: bool = False) -> None:
        """Its answer is in the ledger, or (``is_lost``) will never come."""
        with self._lock:
            self._in_flight -= 1
            self._has_lost = self._has_lost or is_lost

    def look(self) -> Call | None:
        """The statement that gives back what was lost, if there may be something; then say :meth:`looked`."""
        if not self._has_lost:
            return None
        with self._lock:
            if self._is_looking or self._in_flight:
                return None
            self._is_looking = True
        return self._ledger.store.release_lost(self._ledger.worker, self._ledger.claims())

    def looked(self, *, is_done: bool) -> None:
        """The statement has taken effect, or failed."""
        with self._lock:
            self._is_looking = False
            self._has_lost = not is_done
