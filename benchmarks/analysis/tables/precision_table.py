"""Share residuals, store them in fewer bits, or both: one table from the records of config/precision.yaml.

It compares every setting with the full residual in the gradient's own precision, seed by seed: savings and cost.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.claims.evidence import print_doubts
from benchmarks.analysis.labels import markdown_table, metric_heading, metric_value, percent, signed
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.origin import provenance_rows
from benchmarks.analysis.statistics import interval, paired
from benchmarks.analysis.table import by_seed, finished_like
from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json, writable
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

HEAD = ["Model", "Scheme", "Residuals in", "Seeds", "Residuals, MiB", "Normalised", "Peak normalised", "Metric"]
HEAD += ["Change"]
READING = "± is half of a 95 % interval (Student's t); that of the change is paired, over its differences seed by seed."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--run", type=Path, default=Path("results/runs/precision"), help="a run of config/precision.yaml"
    )
    parser.add_argument("--output", type=Path, help="file for the figures (default: in the run's folder)")


def main(args: argparse.Namespace) -> int:
    """Write the figures and print them as a Markdown table. Raises ConfigError if a model has no baseline."""
    run = load_run(args.run)
    output = args.output or args.run / "precision.json"
    writable("output", output)
    rows = [_row(run, setting, results) for setting, results in run.settings().items() if results]
    if not rows:
        raise ConfigError(f"run: {str(args.run)!r} has no finished cell; make some with: make run RUN=precision")
    save_json({"rows": rows, "measured": dict(provenance_rows(run.results.values()))}, output)
    print_doubts(run)
    print(READING)
    print("\n" + markdown_table(HEAD, [_texts(row) for row in rows], "lllrrrrrr"))
    print(output)
    return 0


def _row(run: Run, setting: Cell, results: Sequence[CellResult]) -> dict[str, Any]:
    """Return one setting: bytes, and the paired differences of its metric from the baseline's, with their interval."""
    baseline = _baseline(run, setting)
    metrics = by_seed(results)
    value, difference = interval(list(metrics.values())), interval(paired(metrics, by_seed(baseline)))
    assert value is not None
    states, reference = results[0], baseline[0]
    # Kept gradients take as many bytes as the parameters.
    whole = (reference.total_bytes or 0) + (reference.gradients_bytes == 0) * (reference.parameters_bytes or 0)
    return {
        "model": setting.model,
        "scheme": setting.scheme,
        "residual_dtype": setting.residual_dtype,
        "seeds": len(metrics),
        "residuals_bytes": states.residuals_bytes,
        "total_bytes": states.total_bytes,
        "normalised": (states.total_bytes or 0) / whole,
        "peak_normalised": (states.peak_states_bytes or 0) / whole,
        "metric_name": states.metric_name,
        "higher_is_better": states.higher_is_better,
        "metrics": metrics,
        "metric_mean": value.mean,
        "metric_half_width": value.half_width,
        "difference_mean": difference.mean if difference else None,
        "difference_half_width": difference.half_width if difference else None,
    }


def _baseline(run: Run, setting: Cell) -> list[CellResult]:
    """Return the results with a full residual in the gradient's precision and all else as in `setting`."""
    same, wanted = ("model", "compressor", "density", "gradients"), {"scheme": "baseline", "residual_dtype": None}
    if found := finished_like(run, setting, same, wanted):
        return run.settings()[found[0]]
    raise ConfigError(f"{run.folder}: {setting.model}: no cell of scheme baseline in full precision has finished")


def _texts(row: dict[str, Any]) -> list[str]:
    value, width = row["metric_mean"], row["metric_half_width"]
    difference, its_width = row["difference_mean"], row["difference_half_width"]
    return [
        metric_heading(row),
        row["scheme"],
        row["residual_dtype"] or "the gradient's",
        str(row["seeds"]),
        f"{row['residuals_bytes'] / 2**20:.2f}",
        percent(row["normalised"]),
        percent(row["peak_normalised"]),
        metric_value(value) + (f" ± {metric_value(width)}" if width is not None else ""),
        "" if difference is None else signed(difference, value) + (f" ± {its_width:.3f}" if its_width else ""),
    ]
