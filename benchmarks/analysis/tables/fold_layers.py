"""Tensors that numbered layers of one model have alike, as one row: h.0-35.attn.c_attn.weight."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from benchmarks.analysis.grouping import grouped

NUMBER = re.compile(r"(?:(?<=[._])|^)\d+(?=\.)")
"""The number of a layer: a part of the name of its own, or the end of one (layers.encoder_layer_3.mlp)."""


def fold(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return the names of tensors of equal shape and of names that differ in layers' numbers only, by their run's name.

    A run stands for all combinations of the numbers in its name, and so for no tensor that is not there.
    """
    alike = grouped(((NUMBER.sub("#", name), tuple(shape)), name) for name, shape in shapes.items())
    return dict(run for names in alike.values() for run in _runs(names))


def _runs(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    numbers = {name: tuple(map(int, NUMBER.findall(name))) for name in names}
    different = [sorted(set(column)) for column in zip(*numbers.values(), strict=True)]
    if prod(map(len, different)) == len(names):
        yield _title(names[0], different), names
        return
    # Not all combinations are there: only the number that differs most is folded.
    widest = max(range(len(different)), key=lambda place: len(different[place]))
    for part in grouped((numbers[name][:widest] + numbers[name][widest + 1 :], name) for name in names).values():
        yield from _runs(part)


def _title(name: str, numbers: Sequence[Sequence[int]]) -> str:
    """`name` with the numbers of all layers in the place of its own."""
    ranges = iter(numbers)
    return NUMBER.sub(lambda _: _ranges(next(ranges)), name)


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as 0-11, or 1,3-5."""
    parts = grouped((number - place, number) for place, number in enumerate(numbers)).values()
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
