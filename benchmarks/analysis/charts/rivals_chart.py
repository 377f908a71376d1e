"""Compressors beside one another: contraction against bytes, and metric lost against bytes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.labels import signed_with_half
from resireduce.scheme import COMPRESSORS

CURVE, SELECTS, ALL = "top-k, at several densities", "sends a part", "sends all, in fewer bits"
COLOURS = {CURVE: look.INK, SELECTS: "#0083c4", ALL: "#d55e00"}
WIDTH, HEIGHT = 640, 420
LARGEST = 1.5
"""Contractions above this are not drawn: a vote's length is not the gradient's."""


def contraction_chart(rows: Sequence[Mapping[str, Any]]) -> look.Specification | None:
    """Return the figure of `rivals_rows`: how much of a gradient is left, by what a step sends; None without any."""
    known = [row for row in rows if row["contraction"] is not None and row["contraction"] <= LARGEST]
    shown = list(_points(known, "contraction", "contraction: median of |x - Q(x)|² / |x|²"))
    return (
        _figure(shown, "contraction: what is left of |x|²", alt.Scale(padding=look.NEAR, nice=False)) if shown else None
    )


def lost_chart(rows: Sequence[Mapping[str, Any]]) -> look.Specification | None:
    """Return the figure of `rivals_rows`: how much of the metric is lost, by what a step sends; None without any."""
    shown = list(_points(rows, "lost_mean", "metric lost"))
    upwards = alt.Scale(type="symlog", constant=1, padding=look.NEAR, nice=False)  # some lose nearly all
    return _figure(shown, f"{rows[0]['metric_name']} lost against no compression", upwards) if shown else None


def _figure(shown: list[look.Row], title: str, upwards: alt.Scale) -> look.Specification:
    """Points with names, bars where there are intervals, and a line through those of top-k with error feedback."""
    colour = (
        alt.Color("kind:N").scale(domain=list(COLOURS), range=list(COLOURS.values())).legend(orient="top", title="")
    )
    base = alt.Chart().encode(
        x=alt.X("bytes:Q").scale(type="log", padding=30, nice=False).title("bytes that a rank sends in a step"),
        y=alt.Y("value:Q", scale=upwards, title=title),
        color=colour,
    )
    curve = base.transform_filter(alt.datum.kind == CURVE)
    bars = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5, aria=False).encode(y="low:Q", y2="high:Q")
    layers = (
        base.mark_point(filled=True, size=35, opacity=1).encode(**look.exact()),
        curve.mark_line(strokeWidth=1, strokeDash=[4, 3]).encode(order="bytes:Q"),
        bars,
        base.mark_text(align="left", dx=5, dy=-4, fontSize=8, aria=False).encode(text="label:N"),
    )
    return look.side_by_side(shown, layers, hides="kind", columns=1, width=WIDTH, height=HEIGHT)


def _points(rows: Sequence[Mapping[str, Any]], column: str, what: str) -> Iterator[look.Row]:
    for row in rows:
        if row[column] is None:
            continue
        name, selects = row["compressor"], COMPRESSORS[row["compressor"]].selects
        label = f"{name} {row['density']:g}" if selects else name
        half = row["lost_half_width"] if column == "lost_mean" else None
        yield {
            "model": row["model"],
            "panel": row["model"],
            "kind": CURVE if (name, row["scheme"]) == ("topk", "baseline") else SELECTS if selects else ALL,
            "bytes": row["sent_bytes"],
            "value": row[column],
            "low": None if half is None else row[column] - half,
            "high": None if half is None else row[column] + half,
            "label": label,
            "tip": f"{label}, {row['scheme']}\n{row['sent_bytes']:,.0f} bytes a step\n"
            f"{what}: {signed_with_half(row[column], half, 3)}\nn = {row['seeds']}",
        }
