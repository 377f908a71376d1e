"""Group values by a key, in the order in which they come."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return all values of each key."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def first_of(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, Value]:
    """Return the first value of each key."""
    return {key: values[0] for key, values in grouped(pairs).items()}
