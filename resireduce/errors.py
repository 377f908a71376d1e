"""The library's own exceptions and warnings, and checks of values. Imports no torch."""

import difflib
import sys
import warnings
from collections.abc import Iterable
from types import FrameType

PASSED_OVER = ("resireduce", "torch", "contextlib", "weakref")
"""Packages that a warning does not point at, since the user cannot change their lines."""
LONGEST_VALUE = 200
"""Most characters of a value that a message repeats."""


class ConfigError(ValueError):
    """A setting that cannot be used: the message names the field, the value, what is allowed and the cure."""


class UsageError(RuntimeError):
    """Calls in an order that would train on wrong gradients: the message names the call and the cure."""


class NonFiniteGradient(ArithmeticError):
    """A gradient holds NaN or infinity; none of it has entered the residual."""


def warn(text: str) -> None:
    """Warn with `text` at the line of the script that called the library, perhaps through torch's own code."""
    warnings.warn(text, stacklevel=caller()[1] - 1)


def caller() -> tuple[FrameType, int]:
    """Return the frame that called the library, perhaps through torch's own code, and how many lie within it."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED_OVER:
        frame, level = frame.f_back, level + 1
    return frame, level


def is_number(value: object) -> bool:
    """Whether `value` is an int or a float (True and False are neither)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    """Whether `value` is an int, 0 or more (True and False are not)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def in_one_line(error: object) -> str:
    """Return the message of `error` as one line: line ends and other characters that move a cursor are escaped."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(error))


def short(value: object, most: int = LONGEST_VALUE) -> str:
    """Return a value for a message, cut after `most` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def choose(field: str, value: object, allowed: Iterable[str]) -> str:
    """Return `value` if it is one of `allowed`; else raise a ConfigError that names `field`, lists them and guesses."""
    names = sorted(allowed)
    if isinstance(value, str) and value in names:
        return value
    texts = str(value)[:LONGEST_VALUE], str(value)[:LONGEST_VALUE].lower()
    close = [found for text in texts for found in difflib.get_close_matches(text, names, n=1)]
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    raise ConfigError(f"{field}: {short(value)} is not known{hint}; allowed: {', '.join(names) or 'none'}")


def check(field: str, value: object, is_allowed: bool, wanted: str) -> None:
    """Raise a ConfigError that names `field` and its `value`, and says what is `wanted`, unless it `is_allowed`."""
    if not is_allowed:
        raise ConfigError(f"{field}: {short(value)} is not allowed; give {wanted}")


def check_share(field: str, value: object) -> float:
    """Return `value` as a float in (0, 1], or raise a ConfigError that names `field`."""
    check(field, value, is_number(value) and 0 < value <= 1, f"a share, 0 < {field} <= 1")  # type: ignore[operator]
    return float(value)  # type: ignore[arg-type]


def check_count(field: str, value: object, least: int = 0, of: str = "", or_none: bool = False) -> None:
    """Raise ConfigError unless `value`, how many `of` these, is whole and `least` or more, or None with `or_none`."""
    is_allowed = (or_none and value is None) or (is_count(value) and value >= least)  # type: ignore[operator]
    check(field, value, is_allowed, f"a number{of and f' of {of}'}, {least} or more{', or None' if or_none else ''}")
