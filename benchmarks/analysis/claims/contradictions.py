"""Find figures that a record gives in two disagreeing forms, as after an edit by hand. Imports no torch."""

from collections.abc import Iterator

from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

ROUNDING = 1e-6
"""Largest relative difference between two forms of one figure that were computed from each other."""


def contradictions(record: CellResult) -> Iterator[str]:
    """Yield one line for each contradiction between two statements of a finished record."""
    yield from of_another_cell(record)
    f1, exact = record.metrics.get("f1"), record.metrics.get("exact_match")
    if f1 is not None and exact is not None and f1 < exact * (1 - ROUNDING):
        yield f"metrics: f1 is {f1:.6g}, less than exact_match, {exact:.6g}"


def of_another_cell(record: CellResult) -> Iterator[str]:
    """Yield a line if a record, finished or not, was measured for another cell than its own."""
    content = record.provenance.get("content")
    if not isinstance(content, dict) or "cell" not in content:
        return
    try:
        name = Cell.from_dict(content["cell"]).name
    except ConfigError as error:
        yield f"provenance: its content names no cell ({error})"
        return
    if name != record.cell.name:
        yield f"provenance: it was measured for {name}, and is called {record.cell.name}"
