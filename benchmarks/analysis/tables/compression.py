"""The table of compression times, for `benchmarks measure micro`."""

from collections.abc import Mapping
from typing import Any

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
