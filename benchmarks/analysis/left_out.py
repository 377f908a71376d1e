"""Find what was measured and does not count: seeds that a run's config no longer names, results of earlier starts."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Run
from benchmarks.core.cell import Cell
from benchmarks.core.files import try_json
from benchmarks.core.record import CellResult, try_load
from resireduce.errors import ConfigError


def left_out(run: Run) -> list[str]:
    """Return a line if the folder of a run has records, or failures, of further seeds of its settings, one if it has
    only their logs, and one if cells had another result before, with the same code; [] if not."""
    return [
        *_seeds(run, _strange(run), "cells has records of them, config.json does not name them."),
        *_seeds(run, _begun(run), "logs has them, config.json does not name them, and their records are gone."),
        *_earlier(run),
    ]


def _seeds(run: Run, cells: Iterable[Cell], why: str) -> Iterator[str]:
    found = grouped((replace(cell, seed=0), cell.seed) for cell in cells)
    found = {setting: seeds for setting, seeds in found.items() if setting in run.seeds()}
    if found:
        seeds = ", ".join(map(str, sorted({seed for those in found.values() for seed in those})))
        settings = f"{len(found)} setting{'s' if len(found) > 1 else ''}, e.g. {next(iter(found)).name}"
        yield f"seeds left out: {seeds} of {settings}: {why}"


def _earlier(run: Run) -> Iterator[str]:
    """Yield a line if records that were kept before cells ran again say something else of the same code."""
    kept = ((one, try_load(run.folder / f"earlier/{cell.name}.json")) for cell, one in run.results.items())
    found = [one.cell.name for one, old in kept if old and _same_code(one, old) and _result(one) != _result(old)]
    if found:
        cells = f"{len(found)} cell{'s' if len(found) > 1 else ''}, e.g. {found[0]}"
        yield f"run again: {cells}: earlier has another result of the same code."


def _same_code(one: CellResult, other: CellResult) -> bool:
    content = one.provenance.get("content")
    return bool(content) and content == other.provenance.get("content")


def _result(one: CellResult) -> tuple[object, ...]:
    return one.status, one.metric, [[*pair] for pair in one.metric_history]


def _strange(run: Run) -> Iterator[Cell]:
    """Yield the cells of all records that are of no cell of the run."""
    names = {cell.name for cell in run.cells}
    for path in sorted(run.folder.glob("cells/*.json")):
        own = path.name.removesuffix(".json").removesuffix(".failed")
        if own not in names and (result := try_load(path)):
            yield result.cell


def _begun(run: Run) -> Iterator[Cell]:
    """Yield the cells that were run in a folder, and of which neither the run nor a record knows any more."""
    names = {cell.name for cell in run.cells} | {cell.name for cell in _strange(run)}
    for path in sorted(run.folder.glob("specs/*.json")):
        if path.stem not in names and (run.folder / f"logs/{path.stem}.log").exists():
            with suppress(ConfigError):
                yield Cell.from_dict(try_json(path))
