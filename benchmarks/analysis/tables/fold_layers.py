"""Fold tensors that are alike in all numbered layers of a model into one row: h.0-35.attn.c_attn.weight."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from benchmarks.analysis.grouping import grouped

NUMBER = re.compile(r"(?:(?<=[._])|^)\d+(?=\.)")
"""The number of a layer: a name part of its own, or the end of one (layers.encoder_layer_3.mlp)."""


def fold(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return names of equal shape that differ only in layer numbers, grouped under the name of their run.

    A run stands for all combinations of the numbers in its name, so it never includes a tensor that does not exist.
    """
    alike = grouped(((NUMBER.sub("#", name), tuple(shape)), name) for name, shape in shapes.items())
    return dict(run for names in alike.values() for run in _runs(names))


def _runs(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    numbers = {name: tuple(map(int, NUMBER.findall(name))) for name in names}
    different = [sorted(set(column)) for column in zip(*numbers.values(), strict=True)]
    if prod(map(len, different)) == len(names):
        yield _title(names[0], different), names
        return
    # Some combinations do not exist: fold only the number that varies most.
    widest = max(range(len(different)), key=lambda place: len(different[place]))
    for part in grouped((numbers[name][:widest] + numbers[name][widest + 1 :], name) for name in names).values():
        yield from _runs(part)


def _title(name: str, numbers: Sequence[Sequence[int]]) -> str:
    """Return `name` with its numbers replaced by those of all layers."""
    ranges = iter(numbers)
    return NUMBER.sub(lambda _: _ranges(next(ranges)), name)


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as 0-11, or 1,3-5."""
    parts = grouped((number - place, number) for place, number in enumerate(numbers)).values()
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
