"""`python -m benchmarks intervals`: how sure the metrics of a run are, as JSON and as a table of docs/results.md."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.analysis import labels
from benchmarks.analysis.claims.evidence import print_doubts
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.origin import provenance_rows
from benchmarks.analysis.statistics import CONFIDENCE, Interval
from benchmarks.analysis.table import CELL_COLUMNS, by_seed
from benchmarks.analysis.tables.accuracy import USUAL_DENSITY, accuracy_record
from benchmarks.analysis.tables.memory_table import memory_record
from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json, writable
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

HEAD = ("Model, metric", "Scheme, gradients", "Seeds", "Normalised", "Metric", "Against *baseline, kept*")
SHOWN = [("none", "none", "kept"), *(("topk", scheme, "kept") for scheme in ("none", "baseline", "w+2d"))]
SHOWN += [("topk", "w+2d", "streamed")]
"""Compressor, scheme and gradients of the rows in docs/results.md, at the usual density; the JSON has all others."""
USUAL: dict[str, Any] = {"world_size": 2, "residual_dtype": None, "options": {}, "observe": []}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", type=Path, default=Path("results/runs/mini"), help="a run with several seeds")
    parser.add_argument("--output", type=Path, help="JSON file (default: intervals.json in the run's folder)")


def main(args: argparse.Namespace) -> int:
    """Write the intervals of all settings and print them as a table. Raises ConfigError if no cell has finished."""
    run = load_run(args.run)
    rows = [_row(run, setting, results) for setting, results in run.settings().items() if results]
    if not rows:
        raise ConfigError(f"run: {str(args.run)!r} has no finished cell; make some with: make run RUN=mini PART=table")
    output = args.output or args.run / "intervals.json"
    writable("output", output)
    measured = dict(provenance_rows(run.results.values()))
    save_json({"confidence": CONFIDENCE, "rows": rows, "measured": measured}, output)
    print_doubts(run)
    print(readme_table(rows))
    if run.holes:
        missing = f"{len(run.holes)} of {len(run.cells)} cells"
        print(f"\nMissing: {missing}; see: python -m benchmarks report --run {args.run}")
    print(output)
    return 0


def _row(run: Run, setting: Cell, results: Sequence[CellResult]) -> dict[str, Any]:
    """Return one setting: its metrics by seed and their intervals, its share of the baseline's memory, its speed."""
    shares = memory_record(run, setting, results)
    speeds = [float(result.steps_per_second or 0) for result in results]
    return {
        **accuracy_record(run, setting, results),
        "metrics": by_seed(results),
        **{name: shares[name] for name in ("total_bytes", "normalised", "peak_normalised")},
        "steps_taken": results[0].steps,
        "steps_per_second": mean(speeds),
        "wall_seconds": mean(float(result.wall_seconds or 0) for result in results),
    }


def readme_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows that docs/results.md shows as a Markdown table, grouped by model."""
    shown = [[found[setting] for setting in SHOWN if setting in found] for found in usual_rows(rows).values()]
    lines = [_texts(row, label) for its in shown for row, label in zip(its, row_labels(its), strict=True)]
    return labels.markdown_table(HEAD, lines, "llrrrl")


def usual_rows(rows: Sequence[dict[str, Any]]) -> dict[str, dict[tuple[str, str, str], dict[str, Any]]]:
    """Return, by model, the rows of two ranks at the usual density, keyed by compressor, scheme and gradients."""
    found: dict[str, dict[tuple[str, str, str], dict[str, Any]]] = {}
    for row in rows:
        of_model = found.setdefault(row["model"], {})
        at_usual = row["compressor"] == "none" or row["density"] == USUAL_DENSITY
        if at_usual and all(row[name] == value for name, value in USUAL.items()):
            of_model[row["compressor"], row["scheme"], row["gradients"]] = row
    return found


def row_labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return "scheme, gradients" for each row; rows of an earlier version lack fields that cells have since gained."""
    return labels.short_labels([Cell(**{name: row[name] for name in CELL_COLUMNS if name in row}) for row in rows])


def _texts(row: dict[str, Any], label: str) -> list[str]:
    difference = ""
    if row["difference_mean"] is not None:
        found = Interval(row["difference_mean"], row["difference_half_width"], row["pairs"])
        difference = f"{labels.signed_with_half(found.mean, found.half_width, 2)}, {found.verdict}"
        difference += f" ({row['pairs']} seeds in common)" if row["pairs"] != row["seeds"] else ""
    return [
        labels.metric_heading(row),
        label,
        str(row["seeds"]),
        labels.percent(row["normalised"]),
        labels.with_half(row["metric_mean"], row["metric_half_width"], 2),
        difference,
    ]
