"""Pictures of single commands as SVG: speeds of compression, one simulated step, and how simulated training scales."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.draw import drawn

MOVED, COPIED = 12, 8
"""Bytes per element: gradient read, residual read and written (float32); and those of a copy."""
PARTS = {"computes": "#7a858f", "hidden": "#0083c4", "exposed": "#d55e00"}
"""The kinds of pieces in a lane of a step, and their colours."""


def roofline(rows: Sequence[dict[str, Any]]) -> str:
    """Return bytes per second of the least passes that a compression needs, beside those of a copy.

    A line for each case, over the size of a gradient, in a panel per density. `rows` are those of `compared`.
    """
    x = alt.X("elements:Q").scale(type="log").title("elements of a gradient")
    y = alt.Y("speed:Q").scale(type="log").title("GB/s of gradient and residual")
    return _lines("micro", [_speed(row) for row in rows], x, y, hides="case", width=520, height=300)


def _speed(row: dict[str, Any]) -> look.Row:
    moved = COPIED if row["case"] == "copy" else MOVED
    speed = moved * row["elements"] / row["least_seconds"] / 1e9
    tip = [row["case"], f"{row['elements']:,} elements", f"{1000 * row['least_seconds']:.3g} ms", f"{speed:.3g} GB/s"]
    shown = {"case": row["case"], "elements": row["elements"], "speed": speed, "tip": tip}
    return {"model": "all", "panel": f"density {row['density']:g}", **shown}


def scaling(points: Sequence[dict[str, Any]], title: str) -> str:
    """Return the share of its speed that a rank keeps as ranks are added, with a line per name.

    points: name, ranks, efficiency (1: as fast as alone) and text of each. title: what was simulated.
    """
    rows = []
    for one in points:
        kept = 100 * one["efficiency"]
        tip = [one["name"], f"{one['ranks']} ranks", f"{kept:.1f} %", one["text"]]
        rows.append({"panel": title, "name": one["name"], "ranks": one["ranks"], "efficiency": kept, "tip": tip})
    x = alt.X("ranks:Q", title="ranks").scale(type="log", base=2)
    y = alt.Y("efficiency:Q", title="% of a rank's speed alone", axis=alt.Axis(grid=True)).scale(domain=[0, 100])
    return _lines("scaling", rows, x, y, hides="name", width=460, height=260)


def _lines(name: str, rows: list[look.Row], x: alt.X, y: alt.Y, *, hides: str, width: int, height: int) -> str:
    colour = alt.Color(f"{hides}:N").sort(None).legend(orient="right", columns=1, title=None)
    base = alt.Chart().encode(x=x, y=y, color=colour, **look.exact())
    layers = base.mark_line(), base.mark_point(filled=True)
    return drawn(name, look.side_by_side(rows, layers, hides=hides, columns=1, width=width, height=height)).svg


def step(pieces: Sequence[dict[str, Any]], title: str) -> str:
    """Return one simulated step: its streams as lanes, and the part of communication that nothing hides.

    pieces: lane, part (one of PARTS), start_seconds, end_seconds and text of each; lanes are in their order. title:
    what was simulated.
    """
    rows = [_piece(piece, title) for piece in pieces if piece["end_seconds"] > piece["start_seconds"]]
    lanes = list(dict.fromkeys(piece["lane"] for piece in pieces))
    scale = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    bars = (
        alt.Chart()
        .mark_bar(height=14, stroke="white", strokeWidth=0.3)
        .encode(
            x=alt.X("start:Q", title="ms"),
            x2="end:Q",
            y=alt.Y("lane:N", title=None).sort(lanes),
            color=alt.Color("part:N").scale(scale).legend(title=None),
            **look.exact(),
        )
    )
    return drawn("step", look.side_by_side(rows, [bars], hides="part", columns=1, width=620, height=alt.Step(22))).svg


def _piece(piece: dict[str, Any], title: str) -> look.Row:
    start, end = (1000 * piece[name] for name in ("start_seconds", "end_seconds"))
    tip = [piece["lane"], piece["text"], f"{start:.3f} to {end:.3f} ms"]
    return {"panel": title, "lane": piece["lane"], "part": piece["part"], "start": start, "end": end, "tip": tip}
