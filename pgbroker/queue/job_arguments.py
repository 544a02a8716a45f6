"""Checks of what callers hand to the job queue, before anything is sent to the server.

A value of the wrong type raises ``TypeError``, another wrong value ``ValueError``; both name the argument.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Iterable
from typing import Any

#: Longest queue name in bytes, as in AMQP (a "short string").
QUEUE_MAX_BYTES = 255
#: Longest dedupe key in bytes: queue and key together must fit into one index entry (PostgreSQL, "B-Tree Indexes":
#: about a third of a page, 2704 bytes).
DEDUPE_KEY_MAX_BYTES = 2000
#: Longest name of a worker in bytes; it is indexed too.
WORKER_MAX_BYTES = 1000
#: Longest name of a task in bytes.
TASK_MAX_BYTES = 10_000
#: Most jobs of one claim.
LIMIT_MAX = 100_000
#: Bounds of ``smallint``, for attempts.
ATTEMPTS_MAX = 32767
#: A hundred years in seconds: what is longer is a mistake in the unit.
SECONDS_MAX = 100 * 365.25 * 86400

_BIGINT_MAX = 2**63 - 1


def check_text(name: str, value: Any, max_bytes: int) -> str:
    """A text that Postgres can hold: not empty, no NUL, no lone surrogate, at most ``max_bytes`` bytes of UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    if "\0" in value:
        raise ValueError(f"{name} must not contain NUL characters, which Postgres cannot store: {value!r}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} is not valid Unicode (a lone surrogate): {value!r}") from None
    if size > max_bytes:
        raise ValueError(f"{name} is {size} bytes long, at most {max_bytes} are possible")
    return value


def check_queues(value: str | Iterable[str]) -> list[str]:
    """Names of queues, each once, in the order given; a single name may stand for itself."""
    if not isinstance(value, str | Iterable):
        raise TypeError(f"queues must be names of queues, not {type(value).__name__}")
    names = [value] if isinstance(value, str) else list(value)
    if not names:
        raise ValueError("queues must name at least one queue")
    return list(dict.fromkeys(check_text("queue", name, QUEUE_MAX_BYTES) for name in names))


def check_integer(name: str, value: Any, least: int, most: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {number}")
    return number


def check_priority(value: Any) -> int:
    """A priority, clamped to 0..9."""
    return min(max(check_integer("priority", value, -_BIGINT_MAX, _BIGINT_MAX), 0), 9)


def check_id(name: str, value: Any) -> int:
    """The id of a job or a claim; one that cannot exist becomes 0, which nothing has."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    number = operator.index(value)
    return number if 0 < number <= _BIGINT_MAX else 0


def check_claim(value: Any) -> int | None:
    """A claim token, or ``None`` for any."""
    return None if value is None else check_id("claim", value)


def check_worker(value: Any) -> str:
    """The name of a worker."""
    return check_text("worker", value, WORKER_MAX_BYTES)


def check_key(value: Any) -> str:
    """A dedupe key."""
    return check_text("dedupe_key", value, DEDUPE_KEY_MAX_BYTES)


def check_lease(value: Any) -> float:
    """The length of a lease in seconds."""
    return check_seconds("lease_seconds", value, least=0, is_least_excluded=True)


def check_seconds(name: str, value: Any, *, least: float, is_least_excluded: bool = False) -> float:
    """A duration in seconds (a number or a timedelta), finite, at most a hundred years."""
    if isinstance(value, dt.timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {type(value).__name__}")
    if not (least <= value <= SECONDS_MAX) or math.isnan(value) or (is_least_excluded and value == least):
        relation = "more than" if is_least_excluded else "at least"
        raise ValueError(f"{name} must be {relation} {least:g} s and at most a hundred years, not {value!r}")
    return float(value)


def check_moment(name: str, value: Any) -> dt.datetime | float | None:
    """A point in time (timezone-aware; a naive one means UTC), or seconds from now, or ``None``."""
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        return value if value.utcoffset() is not None else value.replace(tzinfo=dt.UTC)
    if isinstance(value, bool) or not isinstance(value, int | float | dt.timedelta):
        raise TypeError(f"{name} must be a datetime, a timedelta or a number of seconds, not {type(value).__name__}")
    return check_seconds(name, value, least=-SECONDS_MAX)


def check_payload(value: Any) -> dict[str, Any]:
    """Keyword arguments: a dict with str keys. Whether its values fit JSON shows when they are written."""
    if not isinstance(value, dict):
        raise TypeError(f"payload must be a dict of keyword arguments, not {type(value).__name__}")
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"payload must have str keys (they are names of arguments), not {key!r}")
    return value


def error_text(error: str | BaseException) -> str:
    """An error as a text that Postgres can hold; an exception becomes ``type: text``."""
    if isinstance(error, BaseException):
        text = str(error)
        error = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if not isinstance(error, str):
        raise TypeError(f"error must be a str or an exception, not {type(error).__name__}")
    return error.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
