"""How the value of one option is declared, parsed and checked against its bounds."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any

from pgbroker.errors import OptionError

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


def option(default: Any, kind: str, unit: str, meaning: str, **bounds: Any) -> Any:
    """Declare a dataclass field that is an option.

    Args:
        default: value where the user gives none.
        kind: bool, int, float, name (of a schema), url or choice.
        unit: unit of the value, for messages and documents.
        meaning: what the option does, for messages and documents.
        **bounds: `least` and `most` (inclusive) for numbers, `choices` for a choice.

    Returns:
        The field, with all of this in its metadata.
    """
    return field(default=default, metadata={"kind": kind, "unit": unit, "meaning": meaning, **bounds})


def coerce(spec: Field[Any], value: Any) -> Any:
    """Turn what the user wrote into the option's type and check its bounds.

    Args:
        spec: the option, declared with `option`.
        value: a text to parse, or a typed value; `None` for the default.

    Returns:
        The value in the option's type.

    Raises:
        OptionError: wrong type or out of bounds; the message names the option, its unit and its bounds.
    """
    kind, meta = spec.metadata["kind"], spec.metadata
    if value is None or (spec.default is None and value in ("", "none", "None")):
        return spec.default
    if kind == "bool":
        text = str(value).lower()
        if isinstance(value, bool | int | str) and text in _TRUE | _FALSE:
            return text in _TRUE
        raise OptionError(f"{spec.name} must be true or false (also 1/0, yes/no, on/off)")
    if kind in {"int", "float"}:
        number = _to_number(value, whole=kind == "int")
        if number is not None and meta["least"] <= number <= meta["most"]:
            return number
        what = "a whole number" if kind == "int" else "a number"
        bounds = f"{meta['least']} to {meta['most']}"
        raise OptionError(f"{spec.name} must be {what} from {bounds} (unit: {meta['unit']}; {meta['meaning']})")
    if not isinstance(value, str):
        raise OptionError(f"{spec.name} must be a text, not a {type(value).__name__}")
    if kind == "choice" and value not in meta["choices"]:
        raise OptionError(f"{spec.name} must be one of {', '.join(meta['choices'])}")
    if kind == "name" and (
        not 1 <= len(value.encode("utf-8", "replace")) <= 63
        or not value.isprintable()
        or "$" in value
        or value.startswith("pg_")
        or value == "information_schema"
    ):
        raise OptionError(
            f"{spec.name} must be a name of 1 to 63 bytes without control characters and $, "
            "and not one of PostgreSQL's own (pg_..., information_schema)"
        )
    return value


def _to_number(value: object, *, whole: bool) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not whole:
        return number
    return int(number) if number.is_integer() else None


def to_text(value: object) -> str:
    """Write an option's value as it stands in a query string; `coerce` reads it back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e6 else str(value)
