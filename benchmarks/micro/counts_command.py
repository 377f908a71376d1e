"""`python -m benchmarks measure counts`: how far threshold-fitting compressors miss their density. Imports no torch."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.labels import markdown_table, with_half
from benchmarks.analysis.statistics import interval
from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import timing_provenance
from resireduce.scheme import load

ELEMENTS, DENSITIES, DRAWS = 10**6, (0.01, 0.001), 10
READING = (
    "Elements sent / (density x n) of one tensor of {elements:,} elements, without a residual: the mean of {draws} "
    "draws and half of its 95 % interval. t3: Student's t with three degrees of freedom."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    place = Path("results/runs/counts/counts.json")
    parser.add_argument("--output", type=Path, default=place, help="JSON file (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Count all cases, write and print their table, and return 0. Raises ConfigError for unusable input."""
    settings: dict[str, Any] = {"elements": ELEMENTS, "densities": DENSITIES, "draws": DRAWS}
    writable("output", args.output)
    rows = [described(row) for row in load("benchmarks.training.count_cases:counted")(**settings)]
    save_json({**settings, "rows": rows, "measured": timing_provenance()}, args.output)
    print(f"{table(rows)}\n\n{READING.format(**settings)}\n\nAll of it: {args.output}")
    return 0


def described(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the mean, half-width of the interval, least and most of its counts, relative to the target."""
    parts = [count / row["target"] for count in row["counts"]]
    found = interval(parts)
    assert found is not None
    return {**row, "mean": found.mean, "half_width": found.half_width, "least": min(parts), "most": max(parts)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table: a line for each case, a column for each density and input."""
    columns = list(dict.fromkeys((row["density"], row["input"]) for row in rows))
    cells = {(row["case"], row["density"], row["input"]): row for row in rows}
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        found = [cells[case, *column] for column in columns]
        lines.append([case, *(with_half(one["mean"], one["half_width"], 2) for one in found)])
    head = ["Compressor", *(f"{density:g}, {kind}" for density, kind in columns)]
    return markdown_table(head, lines, "l" + "r" * len(columns))
