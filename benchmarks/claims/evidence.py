"""The records that claims are judged by: one run or several put together, and what is odd about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.cell import Cell
from benchmarks.files import load_json
from benchmarks.record import CellResult
from benchmarks.report.load import Hole, Run
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class Evidence:
    """What was measured, what is missing, and which records contradict each other."""

    results: dict[Cell, CellResult]
    holes: dict[Cell, Hole]
    twice: dict[Cell, str]
    """Cells of which a folder holds another record with other values: which one counts is not known."""
    elsewhere: dict[Cell, str]
    """Cells of which a later run has other values; the first run's count."""

    @cached_property
    def by_model(self) -> dict[str, list[Cell]]:
        """All cells by model, in the matrix's order."""
        found: dict[str, list[Cell]] = {}
        for cell in (*self.results, *self.holes):
            found.setdefault(cell.model, []).append(cell)
        return found


def gather(runs: Sequence[Run]) -> Evidence:
    """Put runs together: a cell's first record counts; a hole only where no run filled it."""
    results: dict[Cell, CellResult] = {}
    holes: dict[Cell, Hole] = {}
    twice: dict[Cell, str] = {}
    elsewhere: dict[Cell, str] = {}
    for run in runs:
        twice |= _twice(run)
        for cell, result in run.results.items():
            other = results.setdefault(cell, result)
            if _measured(other) != _measured(result):
                elsewhere[cell] = f"{run.name} has {cell.name} with other values, the first run's count"
        for cell, hole in run.holes.items():
            holes.setdefault(cell, hole)
    return Evidence(results, {cell: hole for cell, hole in holes.items() if cell not in results}, twice, elsewhere)


def _twice(run: Run) -> dict[Cell, str]:
    """Files under other names that hold a record of one of the run's cells, and not the same one."""
    found = {}
    names = {f"{cell.name}.json" for cell in run.cells}
    for path in sorted(run.folder.glob("cells/*.json")):
        if path.name in names or path.name.endswith(".failed.json"):
            continue
        try:
            other = CellResult.from_dict(load_json(path))
        except (OSError, ValueError, ConfigError):
            continue  # Not a record: nothing reads it.
        own = run.results.get(other.cell)
        if own is not None and other.status == "ok" and _measured(own) != _measured(other):
            found[other.cell] = f"{path.name} holds another record of {other.cell.name}; delete the wrong one"
    return found


def _measured(result: CellResult) -> tuple[object, ...]:
    """What two records of one cell must share; times differ by themselves."""
    return result.metric, result.total_bytes, result.residuals_bytes
