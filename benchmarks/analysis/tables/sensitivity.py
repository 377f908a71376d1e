"""Which models can tell residual schemes apart; measured once, from the records of config/tell.yaml, and committed.

If training without residuals ends as well as with them, a metric says nothing about a residual scheme.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.claims.evidence import print_doubts
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.origin import provenance_rows
from benchmarks.analysis.statistics import interval, paired
from benchmarks.analysis.table import by_seed
from benchmarks.core.files import load_json, save_json, writable
from benchmarks.core.paths import ROOT
from resireduce.errors import ConfigError

TELL_FILE = ROOT / "results/reference/tell.json"
"""The committed verdicts, which the tables use."""
SEEDS = 3
"""Seeds needed of each setting."""
SETTINGS = {
    "dense": ("none", "none"),
    "baseline": ("topk", "baseline"),
    "w+2d": ("topk", "w+2d"),
    "none": ("topk", "none"),
}
"""Compressor and scheme of the settings that are compared, with kept gradients."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", type=Path, default=Path("results/runs/tell"), help="a run of config/tell.yaml")
    parser.add_argument("--output", type=Path, help="file for the verdicts (default: tell.json in the run's folder)")


def main(args: argparse.Namespace) -> int:
    """Write the verdicts and print them. Raises ConfigError if a model lacks records."""
    run = load_run(args.run)
    output = args.output or args.run / "tell.json"
    writable("output", output)
    if not run.results:
        raise ConfigError(f"run: {str(args.run)!r} has no finished cell; make some with: make run RUN=tell")
    models = {model: measure_tell(run, model) for model in dict.fromkeys(cell.model for cell in run.cells)}
    save_json({"models": models, "measured": dict(provenance_rows(run.results.values()))}, output)
    print_doubts(run)
    for model, entry in models.items():
        means = ", ".join(f"{name} {_with_width(entry[name])}" for name in SETTINGS)
        verdict = "tells" if entry["tells"] else "does not tell"
        print(f"{model}: {verdict}: without residuals worse by {_with_width(entry['loss'])} ({means})")
    print("± is half of a 95 % interval; that of the loss is paired, over its differences seed by seed.")
    print(output)
    return 0


def measure_tell(run: Run, model: str) -> dict[str, Any]:
    """Return a model's metrics and what is lost without residuals; it tells if the loss's whole interval is above 0."""
    kept = grouped(((c.model, c.compressor, c.scheme), r) for c, r in run.results.items() if c.gradients == "kept")
    results = {name: kept.get((model, *setting), []) for name, setting in SETTINGS.items()}
    for name, found in results.items():
        if len(found) < SEEDS:
            raise ConfigError(f"{run.folder}: {model}, {name}: {len(found)} seeds are there, needed are {SEEDS}")
    metrics = {name: by_seed(found) for name, found in results.items()}
    sides = {name: _summary(list(values.values())) for name, values in metrics.items()}
    any_result = results["none"][0]
    sign = 1 if any_result.higher_is_better else -1
    loss = _summary([sign * one for one in paired(metrics["baseline"], metrics["none"])])
    tells = loss["mean"] - loss["half_width"] > 0
    return {"tells": tells, "metric_name": any_result.metric_name, "loss": loss, **sides}


def _summary(values: Sequence[float]) -> dict[str, Any]:
    found = interval(values)
    assert found is not None
    return {"mean": found.mean, "half_width": found.half_width, "values": list(values)}


def _with_width(side: dict[str, Any]) -> str:
    return f"{side['mean']:.3f} ± {side['half_width']:.3f}"


def load_tells(path: Path = TELL_FILE) -> dict[str, bool]:
    """Return, by model, whether training without residuals ends measurably worse; {} if this was not measured."""
    try:
        return {model: bool(entry["tells"]) for model, entry in load_json(path)["models"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
