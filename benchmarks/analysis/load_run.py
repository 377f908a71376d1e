"""Read a run's folder: what was measured, and what is missing and why."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.reading import Doubted, Hole, read_cells
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.matrix import IMAGE_KEYS, WHOLE, WORDS, expand_parts
from benchmarks.core.progress import Report
from benchmarks.core.record import CellResult, try_load
from resireduce.errors import ConfigError

__all__ = ["Hole", "Part", "Run", "load_run", "strays"]


@dataclass(frozen=True)
class Part:
    """The cells that a config lists under one name, with words for people (empty where the config has none)."""

    cells: list[Cell]
    title: str = ""
    about: str = ""


@dataclass(frozen=True)
class Run:
    """The records of one folder. Only cells of its config count, so left-overs of an older matrix are ignored."""

    folder: Path
    cells: list[Cell]
    results: dict[Cell, CellResult]
    """Finished cells, status ok."""
    holes: dict[Cell, Hole]
    notes: list[str]
    """What is odd about the folder."""
    parts: dict[str, Part] = field(default_factory=dict)
    """The parts of the run's config that count, by name."""
    doubts: dict[Cell, str] = field(default_factory=dict)
    """How results contradict themselves in what is not kept of them (`benchmarks.analysis.reading.Doubted`)."""
    is_whole: bool = True
    """Whether its config could be read, so that it is known which cells are missing."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name

    def settings(self) -> dict[Cell, list[CellResult]]:
        """Return the results of each setting (cells that differ only in their seed), in matrix order."""
        return self._settings

    def seeds(self) -> dict[Cell, tuple[int, ...]]:
        """Return the seeds that each setting should run with, in matrix order."""
        return {setting: tuple(cell.seed for cell in cells) for setting, cells in self._cells.items()}

    def hole_of(self, setting: Cell) -> Hole | None:
        """Return the first missing cell of a setting."""
        return next((self.holes[cell] for cell in self._cells.get(setting, []) if cell in self.holes), None)

    def why_missing(self) -> list[tuple[str, int]]:
        """Return each status of missing cells and how many have it, the most frequent first."""
        return Counter(hole.status for hole in self.holes.values()).most_common()

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return the cached result of `make` under `name`, for values that all rows of a table look up."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    # Computed once: every row of a table looks up its baseline in it.
    @cached_property
    def _settings(self) -> dict[Cell, list[CellResult]]:
        return {
            setting: [self.results[cell] for cell in cells if cell in self.results]
            for setting, cells in self._cells.items()
        }

    @cached_property
    def _cells(self) -> dict[Cell, list[Cell]]:
        return grouped((replace(cell, seed=0), cell) for cell in self.cells)

    @cached_property
    def _made(self) -> dict[Hashable, Any]:
        return {}


def load_run(folder: Path, say: Report | None = None) -> Run:
    """Read a run. A broken or missing record becomes a hole; ConfigError if folder is no run at all.

    Per-step and per-rank data is reduced to what tables need (`benchmarks.analysis.reading.slim`).

    say: receives a progress line every few seconds if reading takes long.
    """
    if not folder.is_dir():
        raise ConfigError(f"run: {str(folder)!r} is not a folder; give one of results/runs")
    if not (folder / "config.json").exists() and not (folder / "cells").is_dir():
        raise ConfigError(f"run: {str(folder)!r} holds no run (no config.json, no cells); give one of results/runs")
    parts, notes = _expected(folder)
    cells = list(dict.fromkeys(cell for part in parts.values() for cell in part.cells))
    found = read_cells(folder, cells, say)
    doubts = {cell: one.why for cell, one in found.items() if isinstance(one, Doubted)}
    kept = {cell: one.result if isinstance(one, Doubted) else one for cell, one in found.items()}
    results = {cell: one for cell, one in kept.items() if isinstance(one, CellResult)}
    holes = {cell: one for cell, one in found.items() if isinstance(one, Hole)}
    return Run(folder, cells, results, holes, notes, parts, doubts, is_whole=not notes)


def strays(run: Run) -> Iterator[tuple[Path, CellResult]]:
    """Yield the valid records in files that are not named after any cell of the run; others are skipped."""
    names = {f"{cell.name}.json" for cell in run.cells}
    for path in sorted(run.folder.glob("cells/*.json")):
        if path.name not in names and not path.name.endswith(".failed.json") and (found := try_load(path)):
            yield path, found


def _expected(folder: Path) -> tuple[dict[str, Part], list[str]]:
    """Return the parts of the run's config, or, if it cannot be read, one part with the records' cells and a note."""
    try:
        config = load_json(folder / "config.json")
        matrix = {key: value for key, value in config.items() if key not in ("run", "site", *IMAGE_KEYS)}
        return {name: _part(cells, matrix, name) for name, cells in expand_parts(matrix).items()}, []
    except (OSError, ValueError, AttributeError) as error:
        note = f"config.json cannot be read ({error}): what is missing is not known."
        cells = [result.cell for result in map(try_load, sorted(folder.glob("cells/*.json"))) if result]
        return {WHOLE: Part(list(dict.fromkeys(cells)))}, [note]


def _part(cells: list[Cell], matrix: dict[str, Any], name: str) -> Part:
    given = (matrix.get("parts") or {}).get(name, {})
    return Part(cells, **{word: str(given.get(word) or "") for word in WORDS})
