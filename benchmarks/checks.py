"""Checks of plain values from files: each returns the value, or raises a ConfigError of one line."""

import math
import sys
from collections.abc import Iterable
from typing import Any

from resireduce.errors import ConfigError, choose, is_count

LARGEST = sys.float_info.max


def known_keys(where: str, given: Any, allowed: Iterable[str]) -> dict[str, Any]:
    """Return given if it is a mapping with allowed keys only; where names the mapping in the message."""
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: {given!r} is not a mapping of names to values")
    names = list(allowed)
    for key in given:
        choose(f"{where} key", key, names)
    return given


def integer(field: str, value: object, minimum: int, maximum: int) -> int:
    """Return value if it is a whole number from minimum to maximum."""
    if is_count(value) and minimum <= value <= maximum:  # type: ignore[operator]
        return value  # type: ignore[return-value]
    raise ConfigError(f"{field}: {_short(value)} is not allowed; give a whole number, {minimum} to {maximum}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def seconds(field: str, value: str | float) -> float:
    """Return value, a number or its text, if it is finite and more than 0."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isfinite(number) and number > 0:
        return number
    raise ConfigError(f"{field}: {value!r} is not allowed; give seconds, a number greater than 0")


def is_number(value: object) -> bool:
    """Say whether value is a number that a float can hold, NaN and infinity included (True and False are none)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < LARGEST
