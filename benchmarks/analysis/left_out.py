"""Find what was measured and does not count: seeds that a run's config no longer names, results of earlier starts."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Run
from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.files import try_json
from benchmarks.core.record import CellResult, try_load
from resireduce.errors import ConfigError

BESIDE = ("seed", "world_size", "nodes", "backend")
"""Fields of a cell that may have any value in a claim: its seeds, and what sets its groups apart."""


def left_out(run: Run) -> list[str]:
    """Return a line if the folder of a run has records, or failures, of further seeds of its settings, one if it has
    them of these settings on other ranks, one if it has only logs, and one if cells had another result before, with the
    same code, or other times; [] if not."""
    return [
        *_seeds(run, _strange(run), "cells has records of them, config.json does not name them."),
        *_groups(run),
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


def _groups(run: Run) -> Iterator[str]:
    """Yield a line if cells has settings of the run on other ranks, nodes or backends: each is a group of its own."""
    known = {_but_place(setting) for setting in run.seeds()}
    settings = {replace(cell, seed=0): None for cell in _strange(run)}
    if found := [one.name for one in settings if one not in run.seeds() and _but_place(one) in known]:
        word = "setting" if len(found) == 1 else "settings"
        yield (
            f"ranks left out: {len(found)} {word}, e.g. {found[0]}: cells has records of them, config.json names them "
            "with other ranks, nodes or backends only."
        )


def _but_place(cell: Cell) -> tuple[object, ...]:
    return tuple(getattr(cell, name) for name in CELL_FIELDS if name not in BESIDE)


def _earlier(run: Run) -> Iterator[str]:
    """Yield a line if records that were kept before cells ran again say something else of the same code."""
    kept = ((one, try_load(run.folder / f"earlier/{cell.name}.json")) for cell, one in run.results.items())
    again = [(one, old) for one, old in kept if old and _same_code(one, old)]
    others = [one.cell.name for one, old in again if _result(one) != _result(old)]
    timed = [one.cell.name for one, old in again if one.steps_per_second != old.steps_per_second]
    for found, what in ((others, "result"), ([name for name in timed if name not in others], "speed")):
        if found:
            cells = f"{len(found)} cell{'s' if len(found) > 1 else ''}, e.g. {found[0]}"
            yield f"run again: {cells}: earlier has another {what} of the same code."


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
