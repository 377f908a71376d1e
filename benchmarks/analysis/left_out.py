"""Find seeds that were measured, and that a run's config no longer names: tables and claims are without them."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Run
from benchmarks.core.cell import Cell
from benchmarks.core.record import try_load


def left_out(run: Run) -> list[str]:
    """Return a line if the folder of a run has records, or failures, of further seeds of its settings; [] if not."""
    found = grouped((replace(cell, seed=0), cell.seed) for cell in _strange(run))
    found = {setting: seeds for setting, seeds in found.items() if setting in run.seeds()}
    if not found:
        return []
    seeds = ", ".join(map(str, sorted({seed for those in found.values() for seed in those})))
    settings = f"{len(found)} setting{'s' if len(found) > 1 else ''}, e.g. {next(iter(found)).name}"
    return [f"seeds left out: {seeds} of {settings}: cells has records of them, config.json does not name them."]


def _strange(run: Run) -> Iterator[Cell]:
    """Yield the cells of all records that are of no cell of the run."""
    names = {cell.name for cell in run.cells}
    for path in sorted(run.folder.glob("cells/*.json")):
        own = path.name.removesuffix(".json").removesuffix(".failed")
        if own not in names and (result := try_load(path)):
            yield result.cell
