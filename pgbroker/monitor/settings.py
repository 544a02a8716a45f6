"""Settings that all processes share: how long what has ended is kept. They stand in the schema, one truth for all."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres import schema
from pgbroker.postgres.pool import pool_for

#: History is a ring of 32 day partitions. Up to 31 of them hold 30 days and what has passed of today; the last one must
#: stand free for a whole day, in which it is emptied before jobs of the next day go into it.
HISTORY_MAX_SECONDS = 30 * 86400

#: A hundred years.
_SECONDS_MAX = 3_153_600_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: what it means, and the whole numbers that it takes.

    Args:
        name: Its name in the table.
        default: What holds where the table has none.
        least: Smallest value.
        most: Largest value.
        unit: Of the value.
        meaning: In one line.
    """

    name: str
    default: int
    least: int
    most: int
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A setting and the value that is in force."""

    setting: Setting
    value: int | float


KNOWN = {
    setting.name: setting
    for setting in (
        Setting(
            "history_seconds",
            86400,
            0,
            HISTORY_MAX_SECONDS,
            "s",
            "how long finished jobs stay visible; 0: they are deleted on completion",
        ),
        Setting(
            "dead_seconds",
            2592000,
            0,
            _SECONDS_MAX,
            "s",
            "how long dead letters are kept; 0: until the next prune",
        ),
        Setting(
            "revoked_seconds",
            10800,
            1,
            _SECONDS_MAX,
            "s",
            "how long a revoke holds for what is published or comes back later (what waits is cancelled at once)",
        ),
    )
}

#: Settings that are kept elsewhere, and where.
ELSEWHERE = {
    "result_expires": "is a setting of Celery's: a process stores results with the result_expires of its application's "
    "configuration, so set it there",
}


def read_settings(options: Options) -> list[SettingValue]:
    """All settings with their values, in the order of :data:`KNOWN`."""
    table = schema.settings.c
    statement = select(table.name, table.value).where(table.name.in_(list(KNOWN)))
    stored = dict(pool_for(options).query(*schema.compiled(statement, options.schema)))
    return [SettingValue(setting, _number(stored.get(name), setting.default)) for name, setting in KNOWN.items()]


def read_setting(options: Options, name: str) -> SettingValue:
    """One setting with its value.

    Raises:
        OptionError: No such setting; the message names the nearest one.
    """
    known = _find(name)
    return next(found for found in read_settings(options) if found.setting is known)


def write_setting(options: Options, name: str, text: str) -> SettingValue:
    """Set a setting, for all processes from now on.

    Args:
        options: Which server and schema.
        name: Name of the setting.
        text: The value, a whole number within the setting's bounds.

    Raises:
        OptionError: No such setting, or the value is none that it takes.
    """
    setting = _find(name)
    try:
        value = int(text)
    except ValueError:
        value = setting.least - 1
    if not setting.least <= value <= setting.most:
        raise errors.OptionError(
            f"{name} must be a whole number from {setting.least} to {setting.most}, not {text!r} "
            f"(unit: {setting.unit}; {setting.meaning})"
        )
    statement = (
        insert(schema.settings)
        .values(name=name, value=str(value))
        .on_conflict_do_update(index_elements=["name"], set_={"value": str(value)})
    )
    pool_for(options).query(*schema.compiled(statement, options.schema))
    return SettingValue(setting, value)


def nearest(name: str, known: list[str]) -> str:
    """``did you mean 'x'?`` for the name most like the given one; where none is, what there is."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(known[:10]) + (" ..." if len(known) > 10 else "")
    return f"known are: {shown}" if known else "there is none yet"


def _find(name: str) -> Setting:
    if name in KNOWN:
        return KNOWN[name]
    if name in ELSEWHERE:
        raise errors.OptionError(f"{name} {ELSEWHERE[name]}")
    raise errors.OptionError(f"no setting named {name!r}; {nearest(name, [*KNOWN, *ELSEWHERE])}")


def _number(text: str | None, default: int) -> int | float:
    if text is None:
        return default
    number = float(text)
    return int(number) if number.is_integer() else number
