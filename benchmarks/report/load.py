"""Read a run's folder: what was measured, and what is missing and why."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.files import load_json
from benchmarks.matrix import IMAGE_KEYS, expand
from benchmarks.record import CellResult, RecordError
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class Hole:
    """A cell of the matrix without a measurement."""

    name: str
    status: str
    reason: str
    command: str
    """What fills it, to be typed in the root of the project."""


@dataclass(frozen=True)
class Run:
    """The records of one folder; only cells of its config count, so that left-overs of an older matrix do not."""

    folder: Path
    cells: list[Cell]
    results: dict[Cell, CellResult]
    """Finished cells, status ok."""
    holes: dict[Cell, Hole]
    notes: list[str]
    """What is odd about the folder."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name

    def settings(self) -> dict[Cell, list[CellResult]]:
        """Return the results of cells that differ in their seed only, in the matrix's order; [] where none finished."""
        return self._settings

    def seeds(self) -> dict[Cell, tuple[int, ...]]:
        """Return the seeds that each setting is to be run with, in the matrix's order."""
        return {setting: tuple(cell.seed for cell in cells) for setting, cells in self._cells.items()}

    def hole_of(self, setting: Cell) -> Hole | None:
        """Return the first missing cell of a setting."""
        return next((self.holes[cell] for cell in self._cells.get(setting, []) if cell in self.holes), None)

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return what make returned when it was first asked for by this name: for what all rows of a table look up."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    # Once: every row of a table looks for its baseline in it.
    @cached_property
    def _settings(self) -> dict[Cell, list[CellResult]]:
        return {
            setting: [self.results[cell] for cell in cells if cell in self.results]
            for setting, cells in self._cells.items()
        }

    @cached_property
    def _cells(self) -> dict[Cell, list[Cell]]:
        found: dict[Cell, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(replace(cell, seed=0), []).append(cell)
        return found

    @cached_property
    def _made(self) -> dict[Hashable, Any]:
        return {}


def load_run(folder: Path) -> Run:
    """Read a run. A broken or missing record becomes a hole; ConfigError if folder is no run at all."""
    if not folder.is_dir():
        raise ConfigError(f"run: {str(folder)!r} is not a folder; give one of results/runs")
    if not (folder / "config.json").exists() and not (folder / "cells").is_dir():
        raise ConfigError(f"run: {str(folder)!r} holds no run (no config.json, no cells); give one of results/runs")
    cells, notes = _expected(folder)
    results: dict[Cell, CellResult] = {}
    holes: dict[Cell, Hole] = {}
    for cell in cells:
        found = _read(folder, cell)
        if isinstance(found, CellResult):
            results[cell] = found
        else:
            holes[cell] = found
    return Run(folder, cells, results, holes, notes)


def _expected(folder: Path) -> tuple[list[Cell], list[str]]:
    """Return the cells of the run's config; without a readable one, those of the records, and a note that says so."""
    try:
        config = load_json(folder / "config.json")
        return expand({key: value for key, value in config.items() if key not in ("run", "site", *IMAGE_KEYS)}), []
    except (OSError, ValueError, AttributeError) as error:
        note = f"config.json cannot be read ({error}): what is missing is not known."
        cells = [result.cell for result in map(_try_load, sorted(folder.glob("cells/*.json"))) if result]
        return list(dict.fromkeys(cells)), [note]


def _try_load(path: Path) -> CellResult | None:
    try:
        return CellResult.load(path)
    except RecordError:
        return None


def _read(folder: Path, cell: Cell) -> CellResult | Hole:
    path = folder / "cells" / f"{cell.name}.json"
    if not path.exists():
        return _hole(folder, cell, *_why_missing(folder, cell), force=False)
    try:
        result = CellResult.load(path)
    except RecordError as error:
        return _hole(folder, cell, "broken", str(error).removeprefix(f"{path}: "), force=True)
    if result.cell != cell:
        return _hole(folder, cell, "broken", f"the record is of another cell, {result.cell.name}", force=True)
    if result.status != "ok":
        return _hole(folder, cell, result.status, str(result.reason), force=True)
    return result


def _why_missing(folder: Path, cell: Cell) -> tuple[str, str]:
    """Return status and reason of a cell without a record."""
    failed = folder / "cells" / f"{cell.name}.failed.json"
    log = folder / "logs" / f"{cell.name}.log"
    try:
        record = load_json(failed)
        status = "unfinished" if dict(record.get("failure", {})).get("interrupted") else str(record["status"])
        return status, f"{record['reason']} (see {log})"
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        return "error", f"{failed.name} cannot be read: {error} (see {log})"
    if log.exists():
        return "unfinished", f"stopped before it left a record (see {log})"
    return "not run", "not run yet"


def _site_of(folder: Path) -> str | None:
    """The file of the cluster that the run was started on, if it was."""
    try:
        return load_json(folder / "config.json").get("site")
    except (OSError, ValueError, AttributeError):
        return None


def _hole(folder: Path, cell: Cell, status: str, reason: str, force: bool) -> Hole:
    target = folder / "cells" / f"{cell.name}.json"
    again = " --force" if force else ""
    start = "--cores all" if _site_of(folder) is None else "--profile slurm"
    command = f".venv/bin/snakemake {start} --configfile {folder}/config.json{again} --nolock -- {target}"
    return Hole(cell.name, status, " ".join(reason.split()), command)
