"""A pump's place in kombu's event loop: its sockets, its tick, its one timer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pgbroker import errors


class Seat:
    """Registration with one hub.

    Args:
        loop: kombu's ``Hub``.
        tick: Called before each wait of the loop.
        readers: What has a ``fileno()`` -> what to call when it becomes readable.
        poke: Makes the loop's next wait end at once.
    """

    def __init__(self, loop: Any, tick: Callable[[], None], readers: dict[Any, Callable[..., None]], poke: Any) -> None:
        self._loop, self._tick, self._readers, self._poke = loop, tick, readers, poke
        self._timer: Any = None
        self._timer_at = 0.0
        for end, callback in readers.items():
            loop.add_reader(end.fileno(), callback)
        loop.on_tick.add(tick)

    def leave(self) -> None:
        """Take everything out of the loop again: kombu itself never does."""
        self._loop.on_tick.discard(self._tick)
        if self._timer is not None:
            self._timer.cancel()
        for end in self._readers:
            try:
                self._loop.remove_reader(end.fileno())
            except (errors.ConnectionLost, OSError, KeyError, ValueError):
                pass  # the socket is gone, and with it its place in the loop

    def arm(self, at: float, *, is_ticking: bool) -> None:
        """Make sure that the loop ticks at that time of the monotonic clock.

        Args:
            at: When.
            is_ticking: This is called from a tick: then the loop has already worked out how long it will sleep.
        """
        now = time.monotonic()
        if self._timer is not None and not self._timer.canceled and now < self._timer_at <= at + 0.001:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_later(max(0.0, at - now), _nothing), at
        if is_ticking:
            self._poke()


def _nothing() -> None:
    """A timer's callback: the loop ticks after it."""
