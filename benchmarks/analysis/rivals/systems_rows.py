"""The rows of the comparison of systems: one for each part of a config and model, from a run of its cells."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.analysis.load_run import Run
from benchmarks.analysis.rivals.rivals_rows import rivals_row
from benchmarks.analysis.table import by_seed
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import WORDS, expand_parts
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

DENSE, BASELINE = "dense", "baseline"
"""The parts that accuracy and memory of the others are compared with."""


def systems_rows(run: Run, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each system, a part of `config`, and each model of which it has finished cells.

    As a row of `rivals_rows`, whose metric without compression is that of the part DENSE; and system, title, about;
    held_share and peak_share, the most bytes of model states between two steps and at the fullest moment of one, as
    shares of what the part BASELINE holds between steps (None while that has not finished). Raises ConfigError for a
    part with several settings of a model, and for cells that did not observe what rows are made of.
    """
    found = {name: _by_model(run, name, cells) for name, cells in expand_parts(config).items()}
    plain = {model: by_seed(results) for model, (_, results) in found.get(DENSE, {}).items()}
    whole = {model: _held(results) for model, (_, results) in found.get(BASELINE, {}).items()}
    rows = []
    for name, its in found.items():
        words = {word: str(config["parts"][name].get(word, name)) for word in WORDS}
        for model, (setting, results) in its.items():
            row = {"system": name, **words, **rivals_row(setting, results, plain.get(model, {}))}
            rows.append(row | _shares(row, whole.get(model)))
    return rows


def _by_model(run: Run, name: str, cells: Sequence[Cell]) -> dict[str, tuple[Cell, list[CellResult]]]:
    """Return the setting and results of each model of a part that has any."""
    mine, found = set(cells), {}
    for setting, results in run.settings().items():
        its = [result for result in results if result.cell in mine]
        if its and setting.model in found:
            raise ConfigError(f"part {name}: {setting.model} has several settings; give one for each model")
        if its:
            found[setting.model] = (setting, its)
    return found


def _held(results: Sequence[CellResult]) -> int:
    return max(result.total_bytes or 0 for result in results)


def _shares(row: Mapping[str, Any], whole: int | None) -> dict[str, float | None]:
    return {
        "held_share": row["total_bytes"] / whole if whole else None,
        "peak_share": row["peak_states_bytes"] / whole if whole else None,
    }
