"""Which models can tell residual schemes apart: measured once, from the records of config/tell.yaml, and committed.

Where training without residuals ends as well as with them, a metric says nothing about a residual scheme.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.files import load_json, save_json
from benchmarks.record import CellResult
from benchmarks.report.load import Run, load_run
from benchmarks.report.provenance import provenance_rows
from benchmarks.report.table import standard_error
from resireduce.errors import ConfigError

TELL_FILE = Path(__file__).parents[2] / "results/reference/tell.json"
"""The verdicts that are committed, which the tables use."""
STANDARD_ERRORS = 3
"""A model tells if training without residuals ends worse than the baseline by more than this many."""
SEEDS = 3
"""Seeds needed of each setting."""
SETTINGS = {
    "dense": ("none", "none"),
    "baseline": ("topk", "baseline"),
    "w+2d": ("topk", "w+2d"),
    "none": ("topk", "none"),
}
"""What is compared: compressor and scheme, gradients kept."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", type=Path, default=Path("results/runs/tell"), help="a run of config/tell.yaml")
    parser.add_argument("--output", type=Path, help="file for the verdicts (default: tell.json in the run's folder)")


def main(args: argparse.Namespace) -> int:
    """Write the verdicts and print them. ConfigError if a model lacks records."""
    run = load_run(args.run)
    if not run.results:
        raise ConfigError(f"run: {str(args.run)!r} has no finished cell; make some with: make run RUN=tell")
    models = {model: measure_tell(run, model) for model in dict.fromkeys(cell.model for cell in run.cells)}
    output = args.output or args.run / "tell.json"
    save_json({"models": models, "measured": dict(provenance_rows(run.results.values()))}, output)
    for model, entry in models.items():
        means = ", ".join(
            f"{name} {entry[name]['mean']:.3f} ± {entry[name]['standard_error']:.3f}" for name in SETTINGS
        )
        verdict = "tells" if entry["tells"] else "does not tell"
        print(f"{model}: {verdict}: worse by {entry['standard_errors']:.1f} standard errors ({means})")
    print(output)
    return 0


def measure_tell(run: Run, model: str) -> dict[str, Any]:
    """A model's metrics, and by how many standard errors of their difference no residuals are worse than all."""
    results = {name: _results(run, model, *setting) for name, setting in SETTINGS.items()}
    for name, found in results.items():
        if len(found) < SEEDS:
            raise ConfigError(f"{run.folder}: {model}, {name}: {len(found)} seeds are there, needed are {SEEDS}")
    sides = {name: _summary([float(result.metric or 0) for result in found]) for name, found in results.items()}
    any_result = results["none"][0]
    worse = sides["baseline"]["mean"] - sides["none"]["mean"]
    worse = worse if any_result.higher_is_better else -worse
    error = (sides["baseline"]["standard_error"] ** 2 + sides["none"]["standard_error"] ** 2) ** 0.5
    ratio = worse / error if error else 0.0
    return {"tells": ratio > STANDARD_ERRORS, "standard_errors": ratio, "metric_name": any_result.metric_name, **sides}


def _results(run: Run, model: str, compressor: str, scheme: str) -> list[CellResult]:
    wanted = (model, compressor, scheme, "kept")
    return [r for c, r in run.results.items() if (c.model, c.compressor, c.scheme, c.gradients) == wanted]


def _summary(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": mean(values), "standard_error": standard_error(values), "values": list(values)}


def load_tells(path: Path = TELL_FILE) -> dict[str, bool]:
    """Return model -> whether training without residuals ends measurably worse there; {} where it was not measured."""
    try:
        return {model: bool(entry["tells"]) for model, entry in load_json(path)["models"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
