"""Systems beside one another: metric lost against bytes sent, a panel for each model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.labels import signed_with_half

WIDTH, HEIGHT = 400, 320
OURS, OTHERS = "of this library and its paper", "of others"
COLOURS = {OURS: "#d55e00", OTHERS: "#0083c4"}
FROM_HERE = ("resireduce", "ours", "ours-least")
"""Parts of the config that are this library's own, and its paper's."""


def systems_chart(rows: Sequence[Mapping[str, Any]]) -> look.Specification | None:
    """Return the figure of `systems_rows`: what each loses of the metric, by what a step sends; None without any."""
    shown = list(_points(rows))
    if not shown:
        return None
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    base = alt.Chart().encode(
        color=alt.Color("kind:N", scale=scale, legend=alt.Legend(orient="top", title="")),
        x=alt.X("bytes:Q").scale(type="log", padding=30, nice=False).title("bytes that a rank sends in a step"),
        y=alt.Y("value:Q", title="metric lost against no compression").scale(
            type="symlog", constant=1, padding=look.NEAR, nice=False
        ),
    )
    layers = (
        base.mark_point(filled=True, size=35, opacity=1).encode(**look.exact()),
        base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5, aria=False).encode(y="low:Q", y2="high:Q"),
        base.mark_text(align="left", dx=5, dy=-5, fontSize=8, aria=False).encode(text="label:N"),
    )
    return look.side_by_side(shown, layers, hides="kind", columns=2, width=WIDTH, height=HEIGHT)


def _points(rows: Sequence[Mapping[str, Any]]) -> Iterator[look.Row]:
    for row in rows:
        if (lost := row["lost_mean"]) is None or row["pairs"] < 2:
            continue
        half = row["lost_half_width"]
        yield {
            "model": row["model"],
            "panel": f"{row['model']}, {row['metric_name']}",
            "kind": OURS if row["system"] in FROM_HERE else OTHERS,
            "bytes": row["sent_bytes"],
            "value": lost,
            "low": None if half is None else lost - half,
            "high": None if half is None else lost + half,
            "label": row["title"],
            "tip": f"{row['title']}\n{row['sent_bytes']:,.0f} bytes a step\n"
            f"{row['metric_name']} lost: {signed_with_half(lost, half, 2)}\nn = {row['pairs']}",
        }
