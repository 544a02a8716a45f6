"""Lengths of time in words, short enough for a table."""

from __future__ import annotations

import datetime as dt

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def in_words(duration: float | dt.timedelta) -> str:
    """A duration (seconds or a timedelta) in its largest fitting unit: ``0.4 s``, ``12 min``, ``3.5 h``, ``30 d``."""
    seconds = abs(duration.total_seconds() if isinstance(duration, dt.timedelta) else duration)
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1, "s"))
    amount = seconds / size
    return f"{round(amount, 0 if amount >= 10 else 1):.15g} {unit}"
