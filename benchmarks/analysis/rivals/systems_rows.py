"""The rows of the comparison of systems: one for each model and part of the config, from a run of its cells."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.analysis.load_run import Part, Run
from benchmarks.analysis.rivals.rivals_rows import rivals_row
from benchmarks.analysis.table import by_seed
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import WHOLE
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

DENSE, BASELINE = "dense", "baseline"
"""The parts that accuracy (DENSE) and memory (BASELINE) of the others are compared with."""


def are_systems(run: Run) -> bool:
    """Say whether the parts of a run are systems: several, each with a title and one setting per model."""
    return len(run.parts) > 1 and all(part.title and not _mixed(part) for part in run.parts.values())


def systems_rows(run: Run) -> list[dict[str, Any]]:
    """Return a row for each system (a part of the run's config) and each model with finished cells.

    It is like a row of `rivals_rows`, with the part DENSE as training without compression, plus: system, title, about;
    held_share and peak_share, the most bytes of model states between two steps and at the fullest moment of one, as
    shares of what the part BASELINE holds between steps (None while that has not finished). Unobserved values are None.
    Raises ConfigError for a part with several settings of a model.
    """
    parts = {name: part for name, part in run.parts.items() if name != WHOLE}
    for name, part in parts.items():
        if model := _mixed(part):
            raise ConfigError(f"part {name}: {model} has several settings; give one for each model")
    found = {name: _by_model(run, part) for name, part in parts.items()}
    plain = {model: by_seed(results) for model, (_, results) in found.get(DENSE, {}).items()}
    whole = {model: _held(results) for model, (_, results) in found.get(BASELINE, {}).items()}
    rows = []
    for name, its in found.items():
        words = {"title": parts[name].title or name, "about": parts[name].about or name}
        for model, (setting, results) in its.items():
            row = {"system": name, **words, **rivals_row(setting, results, plain.get(model, {}))}
            rows.append(row | _shares(row, whole.get(model)))
    return rows


def _mixed(part: Part) -> str | None:
    """Return the first model for which a part has several settings, apart from seeds."""
    found: dict[str, Cell] = {}
    for cell in part.cells:
        if found.setdefault(cell.model, replace(cell, seed=0)) != replace(cell, seed=0):
            return cell.model
    return None


def _by_model(run: Run, part: Part) -> dict[str, tuple[Cell, list[CellResult]]]:
    """Return setting and results of each model that has results in a part."""
    found: dict[str, tuple[Cell, list[CellResult]]] = {}
    for cell in part.cells:
        if cell in run.results:
            found.setdefault(cell.model, (replace(cell, seed=0), []))[1].append(run.results[cell])
    return found


def _held(results: Sequence[CellResult]) -> int:
    return max(result.total_bytes or 0 for result in results)


def _shares(row: Mapping[str, Any], whole: int | None) -> dict[str, float | None]:
    return {
        "held_share": row["total_bytes"] / whole if whole else None,
        "peak_share": row["peak_states_bytes"] / whole if whole else None,
    }
