"""Tensors that numbered layers of one model have alike, as one row: h.0-35.attn.c_attn.weight."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

NUMBER = re.compile(r"(?:(?<=[._])|^)\d+(?=\.)")
"""The number of a layer: a part of the name of its own, or the end of one (layers.encoder_layer_3.mlp)."""


def fold(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return the names of tensors of equal shape and of names that differ in layers' numbers only, by their run's name.

    A run stands for all combinations of the numbers in its name, and so for no tensor that is not there.
    """
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, shape in shapes.items():
        alike.setdefault((NUMBER.sub("#", name), tuple(shape)), []).append(name)
    runs: dict[str, list[str]] = {}
    for names in alike.values():
        runs |= dict(_runs(names))
    return runs


def _runs(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    numbers = {name: tuple(map(int, NUMBER.findall(name))) for name in names}
    different = [sorted(set(column)) for column in zip(*numbers.values(), strict=True)]
    if prod(map(len, different)) == len(names):
        yield _title(names[0], different), names
        return
    # Not all combinations are there: only the number that differs most is folded.
    widest = max(range(len(different)), key=lambda place: len(different[place]))
    parts: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        parts.setdefault(numbers[name][:widest] + numbers[name][widest + 1 :], []).append(name)
    for part in parts.values():
        yield from _runs(part)


def _title(name: str, numbers: Sequence[Sequence[int]]) -> str:
    """`name` with the numbers of all layers in the place of its own."""
    ranges = iter(numbers)
    return NUMBER.sub(lambda _: _ranges(next(ranges)), name)


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as 0-11, or 1,3-5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
