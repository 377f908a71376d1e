"""Group values by a key, in the order in which they come."""

from collections.abc import Hashable, Iterable, Sequence
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


def together(pairs: Iterable[tuple[Key, Value]]) -> list[Value]:
    """Return all values, those of one key one after the other."""
    return [value for values in grouped(pairs).values() for value in values]


def starts_of(keys: Sequence[object]) -> tuple[int, ...]:
    """Return the places at which another key begins."""
    return tuple(place for place, key in enumerate(keys) if place == 0 or key != keys[place - 1])
