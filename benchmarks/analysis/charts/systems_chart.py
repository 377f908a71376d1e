"""Compare systems: metric lost against bytes sent, time of a step or memory, with a panel per model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.name_places import name_layers, panel_points, places, symlog
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import signed_with_half

WIDTH, HEIGHT, ASIDE = 400, 270, 30
OURS, OTHERS = "of this library and its paper", "of others"
COLOURS = {OURS: "#d55e00", OTHERS: "#0083c4"}
FROM_HERE = ("resireduce", "ours", "ours-least")
"""Parts of the config that belong to this library and its paper."""
VIEWS = {
    "bytes that a rank sends in a step": ("sent_bytes", 1),
    "milliseconds of a step": ("step_seconds", 1000),
    "model states held between steps, % of Baseline": ("held_share", 100),
}
"""Views of the horizontal axis: the column of the rows, and its factor."""


def systems_chart(rows: Sequence[Mapping[str, Any]]) -> look.Specification | None:
    """Return the figure of `systems_rows`: the metric lost by each, against its cost; None without any.

    Systems with fewer than half as many seeds as the model's best covered one are left out: a system with one seed,
    which shows that it equals another to the last bit, would lie beside that one.
    """
    shown = [row for view in VIEWS for its in _compared(rows).values() for row in _points(its, view)]
    if not shown:
        return None
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    base = alt.Chart().encode(
        color=alt.Color("kind:N", scale=scale, legend=alt.Legend(orient="top", title="")),
        x=alt.X("at:Q").scale(type="log", padding=ASIDE, nice=False).title(None),
        y=alt.Y("value:Q", title="metric lost against no compression").scale(
            type="symlog", constant=1, padding=look.NEAR, nice=False
        ),
    )
    layers = (
        base.mark_point(filled=True, size=35, opacity=1).encode(**look.exact()),
        base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5, aria=False).encode(y="low:Q", y2="high:Q"),
        *name_layers(base),
    )
    return look.side_by_side(shown, layers, hides="kind", columns=2, width=WIDTH, height=HEIGHT)


def _compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of each model with enough seeds."""
    models = grouped((row["model"], row) for row in rows if row["lost_mean"] is not None)
    most = {model: max(row["pairs"] for row in its) for model, its in models.items()}
    return {model: [row for row in its if 2 * row["pairs"] >= most[model]] for model, its in models.items()}


def _points(rows: Sequence[Mapping[str, Any]], view: str) -> Iterator[look.Row]:
    column, times = VIEWS[view]
    known = sorted((row for row in rows if row[column]), key=lambda row: (row[column], row["lost_mean"]))
    for row, spot in zip(known, _spots(known, column), strict=True):
        lost, half, at = row["lost_mean"], row["lost_half_width"], row[column] * times
        yield {
            "model": row["model"],
            "view": view,
            "panel": f"{row['model']}: {row['metric_name']} lost\nrightwards: {view}",
            "kind": OURS if row["system"] in FROM_HERE else OTHERS,
            "at": at,
            "value": lost,
            "low": None if half is None else lost - half,
            "high": None if half is None else lost + half,
            "label": row["title"],
            "spot": spot,
            "tip": f"{row['model']}, {row['title']}\n{view}: {at:,.0f}\n"
            f"{row['metric_name']} lost: {signed_with_half(lost, half, 2)}\nn = {row['pairs']}",
        }


def _spots(rows: Sequence[Mapping[str, Any]], column: str) -> list[int]:
    """Return the spots of the names in a panel."""
    if not rows:
        return []
    across = [math.log(row[column]) for row in rows]
    reach = [symlog(row["lost_mean"] + sign * (row["lost_half_width"] or 0)) for row in rows for sign in (1, -1)]
    up = [symlog(row["lost_mean"]) for row in rows]
    points = panel_points(across, up, reach, WIDTH, HEIGHT, ASIDE)
    return places(points, [row["title"] for row in rows], WIDTH, HEIGHT)
