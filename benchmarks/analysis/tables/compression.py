"""The table of compression times, for `benchmarks measure micro` and the one-GPU check."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.analysis.labels import markdown_table

HEAD = ["Elements", "Density", "Case", "ms", "Naive / this", "Bound / this"]
ALIGN = "rrlrrr"


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one case at one size and density, in the order of HEAD."""
    return [
        f"{row['elements']:,}",
        f"{row['density']:g}",
        row["case"],
        f"{1000 * row['least_seconds']:.3g}",
        f"{row['naive_ratio']:.2f}",
        f"{row['bound_ratio']:.2f}",
    ]


AVERAGES = ["Elements", "Density", "Ranks", "ms", "ns an element received"]
AVERAGED = "The average of what all ranks have sent by top-k, ranks in turn; with zeroing it, which all numbers share."


def averages_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the time to average what all ranks sent, as a Markdown table with a line on how to read it."""
    cells = [
        [
            f"{row['elements']:,}",
            f"{row['density']:g}",
            str(row["ranks"]),
            f"{1000 * row['least_seconds']:.3g}",
            f"{1e9 * row['least_seconds'] / (row['ranks'] * row['sent']):.2f}",
        ]
        for row in rows
    ]
    return f"{markdown_table(AVERAGES, cells, 'rrrrr')}\n\n{AVERAGED}\n"
