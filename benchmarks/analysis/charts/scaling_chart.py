"""The picture of how simulated training scales: the share of its speed that a rank keeps as ranks are added."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.draw import drawn


def picture(points: Sequence[dict[str, Any]], title: str) -> str:
    """Return an SVG with a line per name. `points`: name, ranks, efficiency (1: as fast as alone) and text of each.

    title: what was simulated.
    """
    rows = [
        {
            "panel": title,
            "name": one["name"],
            "ranks": one["ranks"],
            "efficiency": 100 * one["efficiency"],
            "tip": [one["name"], f"{one['ranks']} ranks", f"{100 * one['efficiency']:.1f} %", one["text"]],
        }
        for one in points
    ]
    base = alt.Chart().encode(
        x=alt.X("ranks:Q", title="ranks").scale(type="log", base=2),
        y=alt.Y("efficiency:Q", title="% of a rank's speed alone", axis=alt.Axis(grid=True)).scale(domain=[0, 100]),
        color=alt.Color("name:N").sort(None).legend(orient="right", columns=1, title=None),
        **look.exact(),
    )
    layers = base.mark_line(), base.mark_point(filled=True)
    return drawn("scaling", look.side_by_side(rows, layers, hides="name", columns=1, width=460, height=260)).svg
