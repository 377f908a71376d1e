"""Find divergences that are copies: of each other, or of the first steps of a training that finished. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.analysis.load_run import Hole
from benchmarks.analysis.near import FIGURE, are_near, near_groups
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult

FEWEST = 2
"""Fewest steps whose seconds tell two trainings apart."""


def copied_divergences(holes: Mapping[Cell, Hole], results: Mapping[Cell, CellResult]) -> dict[Cell, Hole]:
    """Return, with the reason in `doubt`, the holes of trainings that diverged and took the seconds of other ones."""
    ended = {cell: hole for cell, hole in holes.items() if hole.has_diverged and len(hole.seconds) >= FEWEST}
    found = {}
    for cell, other in _pairs(ended, results):
        doubt = f"its steps took the same seconds as those of {other.name}: one training, not 2"
        found[cell] = replace(ended[cell], doubt=doubt)
    return found


def _pairs(ended: Mapping[Cell, Hole], results: Mapping[Cell, CellResult]) -> Iterator[tuple[Cell, Cell]]:
    """Yield each cell that diverged, and another one whose training it is."""
    for alike in near_groups([(hole.seconds, cell) for cell, hole in ended.items()], FIGURE):
        ordered = sorted(alike, key=lambda one: one.name)
        yield from ((cell, next(one for one in ordered if one != cell)) for cell in ordered if len(ordered) > 1)
    for cell, hole in ended.items():
        for other, result in results.items():
            if are_near(result.step_seconds[: len(hole.seconds)], hole.seconds, FIGURE):
                yield cell, other
