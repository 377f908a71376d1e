"""The picture of speeds: bytes per second of the least passes that a compression needs, beside those of a copy."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.draw import drawn

MOVED, COPIED = 12, 8
"""Bytes per element: gradient read, residual read and written (float32); and those of a copy."""


def picture(rows: Sequence[dict[str, Any]]) -> str:
    """Return an SVG: speed by size for each case, with a panel per density. `rows` are those of `compared`."""
    shown = [_point(row) for row in rows]
    base = alt.Chart().encode(
        x=alt.X("elements:Q").scale(type="log").title("elements of a gradient"),
        y=alt.Y("speed:Q").scale(type="log").title("GB/s of gradient and residual"),
        color=alt.Color("case:N").sort(None).legend(orient="right", columns=1, title=None),
        **look.exact(),
    )
    layers = base.mark_line(), base.mark_point(filled=True)
    return drawn("micro", look.side_by_side(shown, layers, hides="case", columns=1, width=520, height=300)).svg


def _point(row: dict[str, Any]) -> look.Row:
    moved = COPIED if row["case"] == "copy" else MOVED
    speed = moved * row["elements"] / row["least_seconds"] / 1e9
    tip = [row["case"], f"{row['elements']:,} elements", f"{1000 * row['least_seconds']:.3g} ms", f"{speed:.3g} GB/s"]
    return {
        "model": "all",
        "panel": f"density {row['density']:g}",
        "case": row["case"],
        "elements": row["elements"],
        "speed": speed,
        "tip": tip,
    }
