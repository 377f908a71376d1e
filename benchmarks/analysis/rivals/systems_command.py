"""`python -m benchmarks systems`: compare systems, as JSON and as a table, from the records of a run."""

import argparse
from pathlib import Path

from benchmarks.analysis.claims.evidence import print_doubts
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.origin import provenance_rows
from benchmarks.analysis.rivals.rivals_rows import check_observed
from benchmarks.analysis.rivals.systems_rows import systems_rows
from benchmarks.analysis.rivals.systems_view import links_words, systems_table
from benchmarks.core.files import save_json, writable
from benchmarks.core.matrix import WHOLE
from resireduce.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", type=Path, default=Path("results/runs/systems"), help="a run of config/systems.yaml")
    parser.add_argument("--output", type=Path, help="JSON file (default: systems.json in the run's folder)")


def main(args: argparse.Namespace) -> int:
    """Write the rows of all systems and print them by model. Raises ConfigError without parts or finished cells."""
    run, again = load_run(args.run), "make some with: make run RUN=systems"
    if run.notes:
        raise ConfigError(f"run: {str(args.run)!r}: {run.notes[0]} Copy the run's config there, or {again}")
    if set(run.parts) <= {WHOLE}:
        raise ConfigError(f"run: {str(args.run)!r} has no parts, which are systems; {again}")
    if not run.results:
        why = ", ".join(f"{count} {status}" for status, count in run.why_missing())
        raise ConfigError(f"run: {str(args.run)!r} has no finished cell ({why}); {again}")
    rows = systems_rows(run)
    check_observed(run.results.values())
    output = args.output or args.run / "systems.json"
    writable("output", output)
    links = links_words(run.results.values())
    save_json({"rows": rows, "links": links, "measured": dict(provenance_rows(run.results.values()))}, output)
    print_doubts(run)
    for model in dict.fromkeys(row["model"] for row in rows):
        print(f"{model}\n{systems_table([row for row in rows if row['model'] == model])}\n")
    if links:
        print(f"Links slowed to: {links}")
    if run.holes:
        print(f"Missing: {len(run.holes)} of {len(run.cells)} cells")
    print(output)
    return 0
