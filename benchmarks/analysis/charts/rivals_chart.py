"""Compare compressors: contraction against bytes, and metric lost against bytes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.charts.name_places import name_layers, panel_points, places, symlog
from benchmarks.analysis.labels import MINUS, signed_with_half
from resireduce.scheme import COMPRESSORS

CURVE, SELECTS, ALL = "top-k, at several densities", "sends a part", "sends all, in fewer bits"
COLOURS = {CURVE: look.INK, SELECTS: "#0083c4", ALL: "#d55e00"}
WIDTH, HEIGHT, ASIDE, MOST = 860, 560, 30, 40
"""Pixels: width and height of a panel, and the margin beside its points; then the largest area of other names and
points that a name may cover before it is left out."""


def contraction_chart(rows: Sequence[Mapping[str, Any]]) -> look.Specification | None:
    """Return the figure of `rivals_rows`: how much of a gradient is taken up, by bytes sent per step; None without any.

    It shows 1 - contraction, since most contractions are near 1. Contractions of 1 and more are not drawn: what is sent
    then does not have the gradient's length, as with votes.
    """
    known = [row for row in rows if row["contraction"] is not None and row["contraction"] < 1]
    taken = [{**row, "taken": 1 - row["contraction"]} for row in known]
    shown = list(_points(taken, "taken", "1 - contraction"))
    upwards = alt.Scale(type="log", padding=look.NEAR, nice=False)
    return _figure(shown, f"1 {MINUS} contraction: what is taken up of |x|²", upwards) if shown else None


def lost_chart(rows: Sequence[Mapping[str, Any]]) -> look.Specification | None:
    """Return the figure of `rivals_rows`: how much of the metric is lost, by bytes sent per step; None without any."""
    shown = list(_points(rows, "lost_mean", "metric lost"))
    upwards = alt.Scale(type="symlog", constant=1, padding=look.NEAR, nice=False)  # some lose nearly all
    return _figure(shown, "metric lost against no compression", upwards) if shown else None


def _figure(shown: list[look.Row], title: str, upwards: alt.Scale) -> look.Specification:
    """Return points with names, bars for intervals, and a line through the points of top-k with error feedback."""
    colour = (
        alt.Color("kind:N").scale(domain=list(COLOURS), range=list(COLOURS.values())).legend(orient="top", title="")
    )
    base = alt.Chart().encode(
        x=alt.X("bytes:Q").scale(type="log", padding=ASIDE, nice=False).title("bytes that a rank sends in a step"),
        y=alt.Y("value:Q", scale=upwards, title=title),
        color=colour,
    )
    curve = base.transform_filter(alt.datum.kind == CURVE)
    bars = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5, aria=False).encode(y="low:Q", y2="high:Q")
    layers = (
        base.mark_point(filled=True, size=35, opacity=1).encode(**look.exact()),
        curve.mark_line(strokeWidth=1, strokeDash=[4, 3]).encode(order="bytes:Q"),
        bars,
        *name_layers(base),
    )
    return look.side_by_side(shown, layers, hides="kind", columns=1, width=WIDTH, height=HEIGHT)


def _points(rows: Sequence[Mapping[str, Any]], column: str, what: str) -> Iterator[look.Row]:
    for model in dict.fromkeys(row["model"] for row in rows):
        known = (row for row in rows if row["model"] == model and row[column] is not None)
        shown = list(_points_of_model(sorted(known, key=lambda row: (row["sent_bytes"], row[column])), column, what))
        _place_names(shown, math.log if column == "taken" else symlog)
        yield from shown


def _place_names(shown: list[look.Row], upwards: Callable[[float], float]) -> None:
    """Set the `spot` of each point's name; where it is crowded, top-k and the outermost points come first."""
    across = [math.log(row["bytes"]) for row in shown]
    up = [upwards(row["value"]) for row in shown]
    reach = up + [upwards(row[end]) for row in shown for end in ("low", "high") if row[end] is not None]
    points = panel_points(across, up, reach, WIDTH, HEIGHT, ASIDE)
    middle = median(y for _, y in points)
    order = sorted(range(len(shown)), key=lambda i: (shown[i]["kind"] != CURVE, -abs(points[i][1] - middle)))
    names = [shown[i]["label"] for i in order]
    for i, spot in zip(order, places([points[i] for i in order], names, WIDTH, HEIGHT, MOST), strict=True):
        shown[i]["spot"] = spot


def _points_of_model(rows: Sequence[Mapping[str, Any]], column: str, what: str) -> Iterator[look.Row]:
    for row in rows:
        name, selects = row["compressor"], COMPRESSORS[row["compressor"]].selects
        label = f"{name} {row['density']:.2g}" if selects else name
        half = row["lost_half_width"] if column == "lost_mean" else None
        yield {
            "model": row["model"],
            "panel": f"{row['model']}, {row['metric_name']}",
            "kind": CURVE if (name, row["scheme"]) == ("topk", "baseline") else SELECTS if selects else ALL,
            "bytes": row["sent_bytes"],
            "value": row[column],
            "low": None if half is None else row[column] - half,
            "high": None if half is None else row[column] + half,
            "label": label,
            "tip": f"{label}, {row['scheme']}\n{row['sent_bytes']:,.0f} bytes a step\n"
            f"{what}: {signed_with_half(row[column], half, 3)}\nn = {row['seeds']}",
        }
