"""`python -m benchmarks systems`: systems beside one another, as JSON and as a table, from records of a run."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis import labels
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.origin import provenance_rows
from benchmarks.analysis.rivals.rivals_command import share_sent
from benchmarks.analysis.rivals.systems_rows import systems_rows
from benchmarks.core.files import load_json, save_json, writable
from resireduce.errors import ConfigError

HEAD = (
    "System",
    "Seeds",
    "Metric",
    "Lost",
    "Sent",
    "KiB a step",
    "ms a step",
    "Held between steps",
    "at the fullest",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", type=Path, default=Path("results/runs/systems"), help="a run of config/systems.yaml")
    parser.add_argument("--output", type=Path, help="JSON file (default: systems.json in the run's folder)")


def main(args: argparse.Namespace) -> int:
    """Write the rows of all systems, and print them by model. ConfigError for a run without parts or finished cells."""
    run = load_run(args.run)
    config = load_json(args.run / "config.json")
    if not config.get("parts"):
        raise ConfigError(
            f"run: {str(args.run)!r} has no parts, which are systems; make some with: make run RUN=systems"
        )
    rows = systems_rows(run, {name: config[name] for name in ("defaults", "parts") if name in config})
    if not rows:
        raise ConfigError(f"run: {str(args.run)!r} has no finished cell; make some with: make run RUN=systems")
    output = args.output or args.run / "systems.json"
    writable("output", output)
    save_json({"rows": rows, "measured": dict(provenance_rows(run.results.values()))}, output)
    for model in dict.fromkeys(row["model"] for row in rows):
        print(f"{model}\n{systems_table([row for row in rows if row['model'] == model])}\n")
    if run.holes:
        print(f"Missing: {len(run.holes)} of {len(run.cells)} cells")
    print(output)
    return 0


def systems_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of one model as a table of Markdown."""
    return labels.markdown_table(HEAD, list(map(_texts, rows)), "lrrrrrrrr")


def _texts(row: Mapping[str, Any]) -> list[str]:
    lost = row["lost_mean"]
    return [
        row["title"],
        str(row["seeds"]),
        labels.with_half(row["metric_mean"], row["metric_half_width"], 2),
        labels.ABSENT if lost is None else labels.signed_with_half(lost, row["lost_half_width"], 2),
        share_sent(row["density_sent"]),
        f"{row['sent_bytes'] / 1024:,.1f}",
        f"{1000 * row['step_seconds']:.0f}",
        *(labels.percent(row[name]) for name in ("held_share", "peak_share")),
    ]
