"""`python -m benchmarks measure operations`: what the host does for a GPU in a step, counted without one. No torch."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.labels import markdown_table
from benchmarks.core.files import save_json, writable
from resireduce.scheme import load

OF_TABLE = ("bert-large", "gpt2-medium", "resnet50")
HEAD = ("Model", "", "Tensors", "Buckets", "Operations", "Launches", "Operations a bucket", "Launches a bucket")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    text = f"whose shapes gradients have (default: {', '.join(OF_TABLE)})"
    parser.add_argument("--models", nargs="+", metavar="MODEL", default=OF_TABLE, help=text)
    place = Path("results/runs/operations/operations.json")
    parser.add_argument("--output", type=Path, default=place, help="JSON file (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Count all, print a table, and write it. Raises ConfigError for an unknown model or a place of no use."""
    writable("output", args.output)
    counted = load("benchmarks.training.operations:counted")
    rows = [row for model in args.models for row in counted(model)]
    save_json({"rows": rows}, args.output)
    print(f"{table(rows)}\n\nAll of it: {args.output}")
    return 0


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table: a line for each model and way."""
    lines = []
    for row in rows:
        totals = [sum(row[name].values()) for name in ("operations", "launches")]
        numbers = [row["tensors"], row["buckets"], *totals]
        a_bucket = [f"{total / row['buckets']:.1f}" for total in totals]
        lines.append([row["model"], row["way"], *map(str, numbers), *a_bucket])
    return markdown_table(HEAD, lines, "llrrrrrr")
