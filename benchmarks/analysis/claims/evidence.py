"""The records that claims are judged by, from one run or several, and what is odd about them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from benchmarks.analysis.claims.copies import doubled
from benchmarks.analysis.claims.sound import date_of, unsound
from benchmarks.analysis.failed import OUTCOMES, load_failed
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Hole, Run, strays
from benchmarks.core.cell import Cell
from benchmarks.core.files import read_text
from benchmarks.core.record import BYTE_FIELDS, CellResult, RecordError
from benchmarks.launching.outcomes import summary

MOST = 5
"""Most records that the notes of a run name."""
LAST_LINE = re.compile(r"(.* MiB)(?:, normalised [0-9.]+%)?(, [0-9.]+ steps/s, [0-9]+ s)")
"""The line that ends a log; how its states are normalised is no figure of the record."""


@dataclass(frozen=True)
class Evidence:
    """What was measured, what is missing, and which records contradict each other."""

    results: dict[Cell, CellResult]
    holes: dict[Cell, Hole]
    twice: dict[Cell, str]
    """Cells for which another record has other values, so that the right one is not known."""

    @cached_property
    def by_model(self) -> dict[str, list[Cell]]:
        """All cells by model, in the order of their names, independent of the order of runs and matrices."""
        cells = sorted((*self.results, *self.holes), key=lambda one: one.name)
        return grouped((cell.model, cell) for cell in cells)


def gather(runs: Sequence[Run]) -> Evidence:
    """Merge runs, independent of their order; a cell that was not run counts as missing only if no run filled it.

    An outcome (`benchmarks.analysis.failed.OUTCOMES`) is not covered by a record: its cell's claims stay open.
    If several runs have a record of a cell, the one measured first counts; if values differ, its claims stay open.
    A record that cannot be genuine counts as a hole.
    """
    found: dict[Cell, list[tuple[str, CellResult]]] = {}
    holes: dict[Cell, Hole] = {}
    twice, ended = dict[Cell, str](), dict[Cell, str]()
    for run in sorted(runs, key=lambda one: (one.name, str(one.folder))):
        twice |= _twice(run)
        if not run.is_whole:
            twice |= dict.fromkeys(
                run.results, f"config.json of {run.name} cannot be read: what is missing is not known"
            )
        broken = _broken(run)
        sound = {cell: result for cell, result in run.results.items() if cell not in broken}
        holes |= broken
        for cell, result in sound.items():
            found.setdefault(cell, []).append((run.name, result))
        for cell, hole in run.holes.items():
            holes[cell] = min(holes.get(cell, hole), hole, key=_rank)
            if hole.status in OUTCOMES:
                ended.setdefault(cell, f"{cell.name} ended as {hole.status} in {run.name}: {hole.why}")
    results = {cell: min(records, key=_when)[1] for cell, records in found.items()}
    twice |= {cell: text for cell, records in found.items() for text in _contrary(cell, records)} | _copies(results)
    twice |= {cell: text for cell, text in ended.items() if cell in results}
    missing = {cell: hole for cell, hole in holes.items() if cell not in results}
    return Evidence(results, missing, twice)


def _broken(run: Run) -> dict[Cell, Hole]:
    """Return a hole for each record of a run that cannot be genuine."""
    why = {cell: unsound(result) or run.doubts.get(cell) for cell, result in run.results.items()}
    again = "delete its record, and run it again"
    return {cell: Hole(cell.name, "broken", problem, again) for cell, problem in why.items() if problem}


def _rank(hole: Hole) -> tuple[bool, bool]:
    """Return the place of a hole among those of one cell: an outcome says more than a cell that is still to be run."""
    return hole.status not in OUTCOMES, bool(hole.doubt)


def doubts(run: Run, shown: str = "Tables show it") -> list[str]:
    """Return a line for each record of a run that its ledger does not count; `shown` says, as words, what does."""
    evidence = gather([run])
    broken = [f"{cell.name}: {hole.reason}" for cell, hole in evidence.holes.items() if cell in run.results]
    return _lines([*broken, *evidence.twice.values()], shown)


def ambiguous(run: Run) -> list[str]:
    """Return a line for each record of a run that is sound, but a copy of another, or unlike the end of its log."""
    return _lines(gather([run]).twice.values(), "The check counts it")


def _lines(texts: Iterable[str], shown: str) -> list[str]:
    found = list(dict.fromkeys(texts))
    more = [f"{len(found) - MOST} more records like these"] if len(found) > MOST else []
    return [f"{text}. {shown}, the ledger does not count it." for text in (*found[:MOST], *more)]


def _when(record: tuple[str, CellResult]) -> tuple[datetime, str, str]:
    """Return when a record was measured; one that does not say comes last."""
    name, result = record
    return date_of(result) or datetime.max.replace(tzinfo=UTC), name, repr(result.step_seconds)


def _contrary(cell: Cell, records: Sequence[tuple[str, CellResult]]) -> Iterator[str]:
    """Yield a message for each run whose values for a cell differ from the first run's."""
    name, first = records[0]
    for other, result in records[1:]:
        if _measured(first) != _measured(result):
            yield f"{name} and {other} have other values of {cell.name}; give one of them"


def _copies(results: Mapping[Cell, CellResult]) -> dict[Cell, str]:
    """Return cells whose records come from one training under several names: all seconds or evaluations agree."""
    times = grouped((tuple(one.step_seconds), cell) for cell, one in results.items() if len(one.step_seconds) > 1)
    texts: dict[Cell, str] = {}
    for cells in times.values():
        names = " and ".join(sorted(cell.name for cell in cells))
        text = f"{names} took the same seconds in every step: one training, not {len(cells)}"
        texts |= dict.fromkeys(cells, text) if len(cells) > 1 else {}
    return texts | doubled(results.values())


def _twice(run: Run) -> dict[Cell, str]:
    """Return cells for which a file under another name holds a different record, or tells of another outcome."""
    found: dict[Cell, str] = {}
    for cell in run.results:
        path = run.folder / "cells" / f"{cell.name}.failed.json"
        with suppress(OSError, RecordError):
            if (other := load_failed(path, cell)).status in OUTCOMES and not other.failure.get("interrupted"):
                found[cell] = f"{path.name} says that {cell.name} ended as {other.status}; delete the wrong one"
    others = {
        other.cell: f"{path.name} holds another record of {other.cell.name}; delete the wrong one"
        for path, other in strays(run)
        if (own := run.results.get(other.cell)) and other.status == "ok" and _measured(own) != _measured(other)
    }
    return found | _logged_otherwise(run) | others


def _logged_otherwise(run: Run) -> dict[Cell, str]:
    """Return cells whose log ends with figures that their record does not have: one of the two was changed."""
    found = {}
    for cell, result in run.results.items():
        with suppress(OSError, UnicodeDecodeError, TypeError):  # a record that lacks figures is not taken anyway
            lines = read_text(run.folder / "logs" / f"{cell.name}.log").splitlines()
            said = [line for line in map(LAST_LINE.match, lines) if line and line[0].startswith(f"{cell.name}: ")]
            if said and said[-1][1] + said[-1][2] != summary(result):
                found[cell] = f"the log of {cell.name} ends with other figures than its record has; run it again"
    return found


def _measured(result: CellResult) -> tuple[object, ...]:
    """Return what two records of one cell must share; times and peaks always differ."""
    history = tuple(tuple(pair) for pair in result.metric_history)
    return result.metric_name, result.metric, history, *(getattr(result, name) for name in BYTE_FIELDS[:5])
