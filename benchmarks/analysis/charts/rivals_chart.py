"""Pictures of docs/: what compressors take up of a gradient, and they and systems lose of the metric, by bytes sent."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.labels import MINUS
from resireduce.scheme import COMPRESSORS

Rows = Sequence[Mapping[str, Any]]
CURVE, SELECTS, ALL = "top-k, at several densities", "sends a part", "sends all, in fewer bits"
COLOURS = {CURVE: look.INK, SELECTS: "#0083c4", ALL: "#d55e00"}
OURS, OTHERS = "of this library and its paper", "of others"
COLOURS_OF_SYSTEMS = {OURS: "#d55e00", OTHERS: "#0083c4"}
FROM_HERE = ("resireduce", "ours", "ours-least")
"""Parts of the systems' config that belong to this library and its paper."""
LARGE, SMALL = (860, 560), (400, 270)
"""Width and height in pixels of a panel: of compressors, and of systems."""
ASIDE = 30
"""Pixels beside the outermost points."""
LETTER, HEIGHT, POINT = 4.7, 9.0, 3.5
"""Pixels of a name in font size 8: width of a letter, and height; and half a point."""
SPOTS = tuple((side, down) for down in (-3, 9, -13, 19, -23, 29, -33, 39) for side in ("left", "right"))
"""Places for a name relative to its point, the better ones first: its alignment, and pixels downwards."""
MOST = 40.0
"""The largest area of other names and points, in pixels, that a compressor's name may cover before it is left out."""
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


def contraction_chart(rows: Rows) -> look.Specification:
    """Return how much of a gradient each compressor takes up, by bytes sent per step.

    It shows 1 - contraction, since most contractions are near 1. Contractions of 1 and more are not drawn: what is sent
    then does not have the gradient's length, as with votes.
    """
    taken = [{**row, "value": 1 - (row["contraction"] or 1)} for row in rows if (row["contraction"] or 1) < 1]
    title = f"1 {MINUS} contraction: what is taken up of |x|²"
    return _picture(map(_compressor, taken), "log", title, COLOURS, LARGE, MOST)


def lost_chart(rows: Rows) -> look.Specification:
    """Return how much of the metric is lost with each compressor, by bytes sent per step."""
    title = "metric lost against no compression"
    return _picture(map(_compressor, _lost(rows)), "symlog", title, COLOURS, LARGE, MOST)


def systems_chart(rows: Rows) -> look.Specification:
    """Return the metric that each system loses, by bytes sent per step.

    Systems with fewer than half as many seeds as the model's best covered one are left out: a system with one seed,
    which shows that it equals another to the last bit, would lie beside that one.
    """
    most = {model: max(row["pairs"] for row in its) for model, its in look.by_model(_lost(rows)).items()}
    shown = (
        row | {"kind": OURS if row["system"] in FROM_HERE else OTHERS, "name": row["title"]}
        for row in _lost(rows)
        if 2 * row["pairs"] >= most[row["model"]]
    )
    return _picture(shown, "symlog", "metric lost against no compression", COLOURS_OF_SYSTEMS, SMALL, math.inf)


def _lost(rows: Rows) -> list[look.Row]:
    return [
        {**row, "value": row["lost_mean"], "half": row["lost_half_width"]}
        for row in rows
        if row["lost_mean"] is not None
    ]


def _compressor(row: look.Row) -> look.Row:
    name, selects = row["compressor"], COMPRESSORS[row["compressor"]].selects
    kind = CURVE if (name, row["scheme"]) == ("topk", "baseline") else SELECTS if selects else ALL
    return row | {"kind": kind, "name": f"{name} {row['density']:.2g}" if selects else name}


def _picture(
    rows: Iterable[look.Row],
    scale: Literal["log", "symlog"],
    title: str,
    colours: Mapping[str, str],
    size: tuple[int, int],
    most: float,
) -> look.Specification:
    """Return points with names, bars for intervals, and a line through the points of top-k with error feedback."""
    upwards = {"log": math.log, "symlog": lambda value: math.copysign(math.log1p(abs(value)), value)}[scale]
    shown = [one for its in look.by_model([*rows]).values() for one in _panel(its, upwards, size, most)]
    up = alt.Scale(type=scale, padding=look.NEAR, nice=False)
    colour = alt.Scale(domain=list(colours), range=list(colours.values()))
    base = alt.Chart().encode(
        x=alt.X("bytes:Q").scale(type="log", padding=ASIDE, nice=False).title("bytes that a rank sends in a step"),
        y=alt.Y("value:Q", title=title).scale(up),
        color=alt.Color("kind:N").scale(colour).legend(orient="top", title=""),
    )
    points = base.mark_point(filled=True, size=35, opacity=1, aria=False)
    curve = base.transform_filter(alt.datum.kind == CURVE).mark_line(strokeWidth=1, strokeDash=[4, 3], aria=False)
    bars = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5, aria=False).encode(y="low:Q", y2="high:Q")
    at: dict[str, Any] = {name: alt.expr(f"datum.{name}") for name in ("align", "dx", "dy")}
    names = base.transform_filter("datum.align").mark_text(fontSize=8, aria=False, **at).encode(text="name:N")
    layers = [points, curve.encode(order="bytes:Q"), bars, names]
    return look.side_by_side(shown, layers, hides="kind", columns=LARGE[0] // size[0], width=size[0], height=size[1])


def _panel(
    its: Sequence[look.Row], upwards: Callable[[float], float], size: tuple[int, int], most: float
) -> Iterator[look.Row]:
    """Yield the marks of a model, those of top-k first; a name goes where it covers little of what is there."""
    its = sorted(its, key=lambda row: (row["sent_bytes"], row["value"]))
    halves = [row.get("half") or 0 for row in its]
    reach = [upwards(row["value"] + sign * half) for row, half in zip(its, halves, strict=True) for sign in (-1, 1)]
    right = _scaled([math.log(row["sent_bytes"]) for row in its], None, ASIDE, size[0] - ASIDE)
    down = _scaled([upwards(row["value"]) for row in its], reach, size[1] - look.NEAR, look.NEAR)
    taken: list[Box] = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in zip(right, down, strict=True)]
    for row, half, x, y in sorted(zip(its, halves, right, down, strict=True), key=lambda one: one[0]["kind"] != CURVE):
        long, costs = len(row["name"]) * LETTER, []
        for place, (side, below) in enumerate(SPOTS):
            left = x + 5 if side == "left" else x - 5 - long
            box = (left, y + below - HEIGHT, left + long, y + below)
            outside = long * HEIGHT - _common(box, (0, 0, size[0] + 60, size[1]))
            costs.append((outside + sum(_common(box, one) for one in taken), place, box))
        covered, place, box = min(costs, key=lambda one: one[0] + 2 * one[1])
        mark = {"model": row["model"], "panel": f"{row['model']}, {row['metric_name']}", "kind": row["kind"]}
        mark |= {"bytes": row["sent_bytes"], "value": row["value"], "name": row["name"]}
        if half:
            mark |= {"low": row["value"] - half, "high": row["value"] + half}
        if covered <= most:
            taken.append(box)
            side, below = SPOTS[place]
            mark |= {"align": side, "dx": 5 if side == "left" else -5, "dy": below}
        yield mark


def _common(one: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    across, along = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1))
    return max(0.0, across) * max(0.0, along)


def _scaled(values: Sequence[float], reach: Sequence[float] | None, first: float, last: float) -> list[float]:
    """Return values as pixels, of which the least of `reach` is at `first` and the greatest at `last`."""
    low, high = min(reach or values), max(reach or values)
    return [first + (last - first) * ((value - low) / (high - low) if high > low else 0.5) for value in values]
