"""The records that claims are judged by: one run or several put together, and what is odd about them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.cell import Cell
from benchmarks.claims.sound import unsound
from benchmarks.files import load_json
from benchmarks.record import BYTE_FIELDS, CellResult
from benchmarks.report.load import Hole, Run
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class Evidence:
    """What was measured, what is missing, and which records contradict each other."""

    results: dict[Cell, CellResult]
    holes: dict[Cell, Hole]
    twice: dict[Cell, str]
    """Cells of which there is another record with other values: which one is right is not known."""

    @cached_property
    def by_model(self) -> dict[str, list[Cell]]:
        """All cells by model, in the order of their names, whatever that of runs and matrices is."""
        found: dict[str, list[Cell]] = {}
        for cell in sorted((*self.results, *self.holes), key=lambda one: one.name):
            found.setdefault(cell.model, []).append(cell)
        return found


def gather(runs: Sequence[Run]) -> Evidence:
    """Put runs together, whatever their order: a hole counts only where no run filled it.

    Of a cell that several runs have the record measured first counts; with other values there, its claims are open.
    A record that cannot be one is a hole.
    """
    found: dict[Cell, list[tuple[str, CellResult]]] = {}
    holes: dict[Cell, Hole] = {}
    twice: dict[Cell, str] = {}
    for run in sorted(runs, key=lambda one: (one.name, str(one.folder))):
        twice |= _twice(run)
        for cell, result in run.results.items():
            if problem := unsound(result):
                holes[cell] = Hole(cell.name, "broken", problem, "delete its record, and run it again")
            else:
                found.setdefault(cell, []).append((run.name, result))
        for cell, hole in run.holes.items():
            holes.setdefault(cell, hole)
    results = {cell: min(records, key=_when)[1] for cell, records in found.items()}
    twice |= {cell: text for cell, records in found.items() for text in _contrary(cell, records)}
    twice |= _copies(results)
    return Evidence(results, {cell: hole for cell, hole in holes.items() if cell not in results}, twice)


def _when(record: tuple[str, CellResult]) -> tuple[str, str, str]:
    name, result = record
    return str(result.provenance.get("date")), name, repr(result.step_seconds)


def _contrary(cell: Cell, records: Sequence[tuple[str, CellResult]]) -> Iterator[str]:
    """What runs that have other values for one cell are told."""
    name, first = records[0]
    for other, result in records[1:]:
        if _measured(first) != _measured(result):
            yield f"{name} and {other} have other values of {cell.name}; give one of them"


def _copies(results: Mapping[Cell, CellResult]) -> dict[Cell, str]:
    """Records that one training left under several names: no two take as long, step by step."""
    known: dict[tuple[float, ...], list[Cell]] = {}
    for cell, result in results.items():
        if len(result.step_seconds) > 1:
            known.setdefault(tuple(result.step_seconds), []).append(cell)
    texts: dict[Cell, str] = {}
    for cells in known.values():
        names = " and ".join(sorted(cell.name for cell in cells))
        if len(cells) > 1:
            texts |= dict.fromkeys(
                cells, f"{names} took the same seconds in every step: one training, not {len(cells)}"
            )
    return texts


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
    """What two records of one cell must share; times and peaks differ by themselves."""
    history = tuple(tuple(pair) for pair in result.metric_history)
    return result.metric_name, result.metric, history, *(getattr(result, name) for name in BYTE_FIELDS[:5])
