"""The picture of one simulated step: its streams as lanes, and the part of communication that nothing hides."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.draw import drawn

PARTS = {"computes": "#7a858f", "hidden": "#0083c4", "exposed": "#d55e00"}
"""The kinds of pieces in a lane, and their colours."""


def picture(pieces: Sequence[dict[str, Any]], title: str) -> str:
    """Return an SVG of one step. `pieces`: lane, part (one of PARTS), start_seconds, end_seconds and text of each.

    title: what was simulated. Lanes are in the order of the pieces.
    """
    rows = [_row(piece, title) for piece in pieces if piece["end_seconds"] > piece["start_seconds"]]
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


def _row(piece: dict[str, Any], title: str) -> look.Row:
    start, end = (1000 * piece[name] for name in ("start_seconds", "end_seconds"))
    tip = [piece["lane"], piece["text"], f"{start:.3f} to {end:.3f} ms"]
    return {"panel": title, "lane": piece["lane"], "part": piece["part"], "start": start, "end": end, "tip": tip}
