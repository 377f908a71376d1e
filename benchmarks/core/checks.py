"""Checks of plain values from files and the command line. Errors say the field, the value and what is allowed."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

from resireduce.errors import LONGEST_VALUE, ConfigError, choose, is_count, short

LARGEST = sys.float_info.max
T = TypeVar("T")
Check = Callable[[Any], bool]


@contextmanager
def within(where: object) -> Iterator[None]:
    """Prefix any ConfigError with the place where it was found: the file, part or cell."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def allow(field: str, value: Any, is_allowed: object, allowed: str) -> Any:
    """Return value if it is allowed; `allowed` describes the allowed values in the message."""
    if not is_allowed:
        raise ConfigError(f"{field}: {short(value, LONGEST_VALUE)} is not allowed; give {allowed}")
    return value


def mapping(where: str, given: Any) -> dict[str, Any]:
    """Return given if it is a mapping; where names it in the message."""
    if not isinstance(given, dict):
        raise ConfigError(
            f"{where}: {short(given, LONGEST_VALUE)} is not a mapping of names to values; give one, as {{name: value}}"
        )
    return given


def several(where: str, given: Any) -> list[Any]:
    """Return given if it is a list of at least one element."""
    return list(allow(where, given, isinstance(given, list | tuple) and given, "a list of at least one"))


def optional(where: str, values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the mapping under a key, an empty one if it is left out or null; where names it in the message."""
    return {} if values.get(key) is None else mapping(where, values[key])


def known_keys(where: str, given: Any, allowed: Iterable[str]) -> dict[str, Any]:
    """Return given if it is a mapping with allowed keys only; where names the mapping in the message."""
    names = list(allowed)
    for key in mapping(where, given):
        choose(f"{where} key", key, names)
    return given


def integer(field: str, value: object, minimum: int, maximum: int) -> int:
    """Return value if it is a whole number from minimum to maximum."""
    if is_count(value) and minimum <= value <= maximum:  # type: ignore[operator]
        return value  # type: ignore[return-value]
    raise ConfigError(f"{field}: {short(value)} is not allowed; give a whole number, {minimum} to {maximum}")


def seconds(field: str, value: str | float) -> float:
    """Return value, a number or its text, if it is finite and more than 0."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    allow(field, value, math.isfinite(number) and number > 0, "seconds, a number greater than 0")
    return number


def is_number(value: object) -> bool:
    """Say whether value is a number that a float can hold, NaN and infinity included (True and False do not count)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < LARGEST


def is_text(value: object) -> bool:
    """Say whether value is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def are_numbers(values: Iterable[Any]) -> bool:
    """Say whether all are numbers; checked by type, since long trainings have hundreds of thousands of steps."""
    return set(map(type, values)) <= {float} or all(is_number(value) for value in values if type(value) is not float)


def first_twice(values: Iterable[T]) -> T | None:
    """Return the first value that occurs more than once; None if there is none."""
    return next((value for value, count in Counter(values).items() if count > 1), None)


TYPES: Mapping[Any, tuple[str, Check]] = {
    str: ("a text", is_text),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number, 0 or more", is_count),
    float: ("a number", is_number),
    dict: ("a mapping", lambda value: isinstance(value, dict)),
    dict[str, float]: ("numbers by name", lambda value: isinstance(value, dict) and are_numbers(value.values())),
    list[float]: ("a list of numbers", lambda value: isinstance(value, list | tuple) and are_numbers(value)),
    list[dict[str, Any]]: ("a list of mappings", lambda value: all_of(value, dict)),
}
"""For each type of a dataclass field: the allowed values in words, and their check."""


def all_of(values: object, kind: type | tuple[type, ...]) -> bool:
    """Say whether values is a list whose elements are all of this kind."""
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values)


def wrong_fields(record: Any, own: Mapping[str, tuple[str, Check]]) -> Iterator[tuple[str, str]]:
    """Yield each field of a dataclass whose value is not of its type, and what is allowed; `own` has other checks."""
    for name, of_type in _types_of(record.__class__):
        allowed, check = own.get(name, of_type)
        if not check(getattr(record, name)):
            yield name, allowed


@cache
def _types_of(kind: Any) -> list[tuple[str, tuple[str, Check]]]:
    return [(field.name, _type_of(field.type)) for field in fields(kind)]


def _type_of(kind: Any) -> tuple[str, Check]:
    if NoneType in get_args(kind):
        allowed, check = _type_of(get_args(kind)[0])
        return allowed, lambda value: value is None or check(value)
    known = TYPES.get(kind) or TYPES.get(get_origin(kind))
    return known or (f"a {getattr(kind, '__name__', kind)}", lambda value: isinstance(value, kind))
