"""Turn a row into its record: published, measured, n, interval, hardware, and what is missing and how to fill it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Hole, Run
from benchmarks.analysis.paper.paper_rows import Row
from benchmarks.analysis.paper.quantity import DIFFERENCE, UNITS, Quantity
from benchmarks.analysis.paper.spec import Spec
from benchmarks.analysis.statistics import interval
from benchmarks.analysis.table import Record, setting_record
from benchmarks.analysis.tables.accuracy import metric_of_model
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult

PUBLISHED = {"": "value", "_unit": "unit", "_id": "id", "_source": "source"}
"""Suffixes of the columns with published values, and the field that each column shows."""


def make_record(run: Run, spec: Spec, row: Row) -> Record:
    """Return the raw values of a row."""
    results = run.settings().get(row.setting, [])
    other = row.line.against(row.setting) if row.line.against else None
    others = run.settings().get(other, []) if other else []
    values = row.line.quantity.by_seed(results, others)
    return {
        **setting_record(row.setting, results),
        "kind": row.kind,
        "line": row.label,
        "part": row.part,
        **_quantity(run, row),
        **{f"published{end}": getattr(row.published, name, None) for end, name in PUBLISHED.items()},
        **_interval("measured", values),
        "values": {str(seed): value for seed, value in values.items()},
        **_compared(run, spec, row, results),
        "hardware": hardware([*results, *others]) if results else None,
        "seeds_wanted": len(row.seeds),
        **_missing(run, row, other, values),
    }


def _quantity(run: Run, row: Row) -> Record:
    quantity, metric = row.line.quantity, metric_of_model(run, row.setting.model)
    better = metric["higher_is_better"] if quantity.unit is None else None
    if quantity.higher_is_better is not None:
        better = quantity.higher_is_better
    name = metric["metric_name"]
    return {
        "quantity": quantity.name,
        "unit": quantity.unit or UNITS.get(name, name) or (row.published.unit if row.published else None),
        "metric_name": name,
        "higher_is_better": better,
    }


def _interval(name: str, values: Mapping[int, float]) -> Record:
    found = interval([values[seed] for seed in sorted(values)])
    return {
        name: found.mean if found else None,
        f"{name}_half_width": found.half_width if found else None,
        f"{name}_n": found.n if found else 0,
    }


def _compared(run: Run, spec: Spec, row: Row, results: Sequence[CellResult]) -> Record:
    """Return the difference from another setting's metric, seed by seed, and the verdict of its interval."""
    if spec.compared is None:
        return {}
    other = spec.compared[1](row.setting)
    others = run.settings().get(other, []) if other and other != row.setting else []
    values = DIFFERENCE.by_seed(results, others) if row.line.quantity.unit is None else {}
    found = interval([values[seed] for seed in sorted(values)])
    return {**_interval("difference", values), "verdict": found.verdict if found else None}


def hardware(results: Sequence[CellResult]) -> str | None:
    """Return the devices that the records were measured on, each once; None if there are none."""
    devices = {str(result.provenance.get("device") or "device not recorded") for result in results}
    return "; ".join(sorted(devices)) or None


def _missing(run: Run, row: Row, other: Cell | None, values: Mapping[int, float]) -> Record:
    """Return the cells without a measurement, of the setting and of the one that it is compared with."""
    own = missing_cells(run, row.setting, row.seeds, row.part)
    beside = missing_cells(run, other, row.seeds, row.part) if other else []
    texts = [missing_text(own, len(row.seeds))] if own else []
    texts += [f"to compare with: {missing_text(beside, len(row.seeds))}"] if beside and not own else []
    if not texts and not values:
        texts = ["its records have no such value"]
    commands = list(dict.fromkeys(one["command"] for one in [*own, *beside]))
    return {
        "missing": ", ".join(texts) or None,
        "missing_cells": own + [one | {"setting": other.name} for one in beside if other],
        "command": None if not commands else commands[0] if len(commands) == 1 else part_command(row.part),
    }


def text_of(quantity: Quantity, value: float) -> str:
    """Return a value with the decimals of its quantity."""
    return f"{value:.{quantity.digits}f}"


NOT_RUN = "not run"
WORDS = {"node-fail": "node lost"}


def missing_cells(run: Run, setting: Cell, seeds: Sequence[int], part: str) -> list[dict[str, Any]]:
    """Return seed, status, reason and command of each cell of a setting that has no measurement."""
    found = []
    for seed in seeds:
        cell = replace(setting, seed=seed)
        if cell in run.results:
            continue
        hole = run.holes.get(cell) or Hole(cell.name, NOT_RUN, "no cell of this run", part_command(part))
        found.append({"seed": seed, "status": hole.status, "reason": hole.reason, "command": hole.command})
    return found


def part_command(part: str) -> str:
    """Return the command that measures a part of config/paper.yaml on this machine."""
    return f"make run RUN=paper PART={part}"


def missing_text(missing: Sequence[dict[str, Any]], seeds: int) -> str:
    """Return the statuses in a few words: one status for all seeds, or each with its seeds."""
    by_status = grouped((WORDS.get(one["status"], one["status"]), one["seed"]) for one in missing)
    if len(by_status) == 1 and len(missing) == seeds:
        return next(iter(by_status))
    words = [f"{status} (seed {', '.join(map(str, found))})" for status, found in by_status.items()]
    return ", ".join(words)
