"""Share residuals, store them in fewer bits, or both? One table from the records of config/precision.yaml.

Every setting against the full residual in the gradient's own precision, seed by seed: what it saves, what it costs.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.cell import Cell
from benchmarks.files import save_json
from benchmarks.record import CellResult
from benchmarks.report.labels import markdown_table, metric_heading, metric_value, percent, signed
from benchmarks.report.load import Run, load_run
from benchmarks.report.provenance import provenance_rows
from benchmarks.report.seeds import by_seed
from benchmarks.report.student import half_width, paired
from resireduce.errors import ConfigError

HEAD = (
    "Model",
    "Scheme",
    "Residuals in",
    "Seeds",
    "Residuals, MiB",
    "Normalised",
    "Peak normalised",
    "Metric",
    "Change",
)

READING = "± is half of a 95 % interval (Student's t); that of the change is paired, over its differences seed by seed."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--run", type=Path, default=Path("results/runs/precision"), help="a run of config/precision.yaml"
    )
    parser.add_argument("--output", type=Path, help="file for the figures (default: in the run's folder)")


def main(args: argparse.Namespace) -> int:
    """Write the figures and print them as a Markdown table. ConfigError if a model has no baseline to compare with."""
    run = load_run(args.run)
    rows = [_row(run, setting, results) for setting, results in run.settings().items() if results]
    if not rows:
        raise ConfigError(f"run: {str(args.run)!r} has no finished cell; make some with: make run RUN=precision")
    output = args.output or args.run / "precision.json"
    save_json({"rows": rows, "measured": dict(provenance_rows(run.results.values()))}, output)
    print(READING)
    print("\n" + markdown_table(HEAD, [_texts(row) for row in rows], "lllrrrrrr"))
    print(output)
    return 0


def _row(run: Run, setting: Cell, results: Sequence[CellResult]) -> dict[str, Any]:
    """One setting: bytes, and its metric's differences to the baseline's of the same seeds, with their interval."""
    baseline = _baseline(run, setting)
    metrics = by_seed(results)
    differences = paired(metrics, by_seed(baseline))
    states, reference = results[0], baseline[0]
    # With kept gradients there are as many bytes of them as of parameters.
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
        "metric_mean": mean(metrics.values()),
        "metric_half_width": half_width(list(metrics.values())),
        "difference_mean": mean(differences) if differences else None,
        "difference_half_width": half_width(differences),
    }


def _baseline(run: Run, setting: Cell) -> list[CellResult]:
    """The results with a full residual in the gradient's precision, and all else as in `setting`."""
    wanted = (setting.model, setting.compressor, setting.density, setting.gradients, "baseline", None)
    for other, results in run.settings().items():
        found = (other.model, other.compressor, other.density, other.gradients, other.scheme, other.residual_dtype)
        if found == wanted and results:
            return results
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
