"""Compare compressors and systems: contraction, or the metric lost, against bytes, time of a step or memory."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import MINUS, signed_with_half
from resireduce.scheme import COMPRESSORS

# --- Place names beside the points of a figure so that they cover neither one another nor points ---


LETTER, ASCENT, DESCENT = 4.7, 7.0, 2.0
"""Pixels of a name in font size 8: width of a letter, height above the line, depth below."""
POINT, FARTHER = 3.5, 2.0
"""Half a point in pixels; and the pixels a name may cover before the next spot is preferred."""
Align = Literal["left", "right"]
SIDES: tuple[tuple[Align, int], ...] = (("left", 5), ("right", -5))
SPOTS = tuple((align, right, down) for down in (-3, 9, -13, 19, -23, 29, -33, 39) for align, right in SIDES)
"""Places for a name relative to its point, the better ones first: alignment, pixels rightwards and downwards."""
NO_SPOT = -1
"""Used for a spot if the name is left out."""
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


def places(
    points: Sequence[tuple[float, float]], names: Sequence[str], width: float, height: float, most: float = math.inf
) -> list[int]:
    """Return, for each point, the index of its name's spot in SPOTS, chosen one after the other.

    points: right and down, in pixels of a panel of `width` and `height`. A name goes where it is near its point and
    covers little of earlier names, of all points and of the area outside of the panel, but for a little on the right.
    It gets NO_SPOT if it would cover more than `most` pixels anywhere.
    """
    taken: list[Box] = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in points]
    panel, found = (0, 0, width + 60, height), []
    for (x, y), name in zip(points, names, strict=True):
        long, boxes = len(name) * LETTER, list[Box]()
        for align, right, down in SPOTS:
            left = x + right - (long if align == "right" else 0)
            boxes.append((left, y + down - ASCENT, left + long, y + down + DESCENT))
        covered = [sum(_common(box, one) for one in taken) + _common(box, box) - _common(box, panel) for box in boxes]
        best = min(range(len(SPOTS)), key=lambda place: covered[place] + FARTHER * place)
        found.append(best if covered[best] <= most else NO_SPOT)
        taken += [boxes[best]] if covered[best] <= most else []
    return found


def _common(one: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    along = min(one[3], other[3]) - max(one[1], other[1])
    return across * along if across > 0 and along > 0 else 0.0


def _points(
    shown: Sequence[look.Row], across: str, upwards: Callable[[float], float], size: tuple[int, int]
) -> list[tuple[float, float]]:
    """Return where points lie in a panel of this size, right and down, in pixels; their intervals are in it too."""
    x = [math.log(row[across]) for row in shown]
    y = [upwards(row["value"]) for row in shown]
    reach = y + [upwards(row[end]) for row in shown for end in ("low", "high") if row[end] is not None]
    right = _scaled(x, x, ASIDE, size[0] - ASIDE)
    return list(zip(right, _scaled(y, reach, size[1] - look.NEAR, look.NEAR), strict=True))


def _scaled(values: Sequence[float], reach: Sequence[float], first: float, last: float) -> list[float]:
    """Return values as pixels, of which the least of `reach` is at `first` and the greatest at `last`."""
    low, high = min(reach, default=0), max(reach, default=0)
    return [first + (last - first) * ((value - low) / (high - low) if high > low else 0.5) for value in values]


def _symlog(value: float) -> float:
    """Return the place of a value on a symlog scale whose constant is 1."""
    return math.copysign(math.log1p(abs(value)), value)


# --- Compare compressors and systems: contraction, or the metric lost, against bytes, time of a step or memory ---


Rows = Sequence[Mapping[str, Any]]
CURVE, SELECTS, ALL = "top-k, at several densities", "sends a part", "sends all, in fewer bits"
COLOURS = {CURVE: look.INK, SELECTS: "#0083c4", ALL: "#d55e00"}
OURS, OTHERS = "of this library and its paper", "of others"
COLOURS_OF_SYSTEMS = {OURS: "#d55e00", OTHERS: "#0083c4"}
FROM_HERE = ("resireduce", "ours", "ours-least")
"""Parts of the systems' config that belong to this library and its paper."""
VIEWS = {
    "bytes that a rank sends in a step": ("sent_bytes", 1),
    "milliseconds of a step": ("step_seconds", 1000),
    "model states held between steps, % of Baseline": ("held_share", 100),
}
"""Views of the horizontal axis of systems: the column of the rows, and its factor."""
LARGE, SMALL = (860, 560), (400, 270)
"""Width and height in pixels of a panel: of compressors, and of systems."""
ASIDE, MOST = 30, 40
"""Pixels: the margin beside points, and the largest area of other names and points that a compressor's name may cover
before it is left out."""


def contraction_chart(rows: Rows) -> look.Specification | None:
    """Return how much of a gradient each compressor takes up, by bytes sent per step; None without any.

    It shows 1 - contraction, since most contractions are near 1. Contractions of 1 and more are not drawn: what is sent
    then does not have the gradient's length, as with votes.
    """
    known = [row for row in rows if row["contraction"] is not None and row["contraction"] < 1]
    taken = [{**row, "taken": 1 - row["contraction"]} for row in known]
    shown = list(_compressors(taken, "taken", "1 - contraction"))
    upwards = alt.Scale(type="log", padding=look.NEAR, nice=False)
    return _of_compressors(shown, f"1 {MINUS} contraction: what is taken up of |x|²", upwards) if shown else None


def lost_chart(rows: Rows) -> look.Specification | None:
    """Return how much of the metric is lost with each compressor, by bytes sent per step; None without any."""
    shown = list(_compressors(rows, "lost_mean", "metric lost"))
    return _of_compressors(shown, "metric lost against no compression", _lost_scale()) if shown else None


def _of_compressors(shown: list[look.Row], title: str, upwards: alt.Scale) -> look.Specification:
    """Return points with names, bars for intervals, and a line through the points of top-k with error feedback."""
    colour = (
        alt.Color("kind:N").scale(domain=list(COLOURS), range=list(COLOURS.values())).legend(orient="top", title="")
    )
    base = alt.Chart().encode(
        x=alt.X("bytes:Q").scale(type="log", padding=ASIDE, nice=False).title("bytes that a rank sends in a step"),
        y=alt.Y("value:Q", scale=upwards, title=title),
        color=colour,
    )
    curve = base.transform_filter(alt.datum.kind == CURVE).mark_line(strokeWidth=1, strokeDash=[4, 3])
    points, *others = _named_points(base)
    layers = (points, curve.encode(order="bytes:Q"), *others)
    return look.side_by_side(shown, layers, hides="kind", columns=1, width=LARGE[0], height=LARGE[1])


def systems_chart(rows: Rows) -> look.Specification | None:
    """Return the metric that each system loses, against its cost; None without any.

    Systems with fewer than half as many seeds as the model's best covered one are left out: a system with one seed,
    which shows that it equals another to the last bit, would lie beside that one.
    """
    shown = [row for view in VIEWS for its in _compared(rows).values() for row in _systems(its, view)]
    if not shown:
        return None
    scale = alt.Scale(domain=list(COLOURS_OF_SYSTEMS), range=list(COLOURS_OF_SYSTEMS.values()))
    base = alt.Chart().encode(
        color=alt.Color("kind:N", scale=scale, legend=alt.Legend(orient="top", title="")),
        x=alt.X("at:Q").scale(type="log", padding=ASIDE, nice=False).title(None),
        y=alt.Y("value:Q", title="metric lost against no compression").scale(_lost_scale()),
    )
    layers = tuple(_named_points(base))
    return look.side_by_side(shown, layers, hides="kind", columns=2, width=SMALL[0], height=SMALL[1])


def _lost_scale() -> alt.Scale:
    return alt.Scale(type="symlog", constant=1, padding=look.NEAR, nice=False)  # some lose nearly all


def _named_points(base: alt.Chart) -> Iterator[alt.Chart]:
    """Yield the layers of points, of bars for their intervals, and of their names."""
    yield base.mark_point(filled=True, size=35, opacity=1).encode(**look.exact())
    yield base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5, aria=False).encode(y="low:Q", y2="high:Q")
    for spot, (align, right, down) in enumerate(SPOTS):
        here = base.transform_filter(alt.datum.spot == spot)
        yield here.mark_text(align=align, dx=right, dy=down, fontSize=8, aria=False).encode(text="label:N")


def _compressors(rows: Rows, column: str, what: str) -> Iterator[look.Row]:
    for its in grouped((row["model"], row) for row in rows if row[column] is not None).values():
        shown = [
            _compressor(row, column, what) for row in sorted(its, key=lambda row: (row["sent_bytes"], row[column]))
        ]
        points = _points(shown, "bytes", math.log if column == "taken" else _symlog, LARGE)
        # Where it is crowded, top-k and the outermost points come first.
        middle = median(y for _, y in points)
        order = sorted(range(len(shown)), key=lambda i: (shown[i]["kind"] != CURVE, -abs(points[i][1] - middle)))
        names = [shown[i]["label"] for i in order]
        for i, spot in zip(order, places([points[i] for i in order], names, *LARGE, MOST), strict=True):
            shown[i]["spot"] = spot
        yield from shown


def _compressor(row: Mapping[str, Any], column: str, what: str) -> look.Row:
    name, selects = row["compressor"], COMPRESSORS[row["compressor"]].selects
    label = f"{name} {row['density']:.2g}" if selects else name
    half = row["lost_half_width"] if column == "lost_mean" else None
    return {
        "model": row["model"],
        "panel": f"{row['model']}, {row['metric_name']}",
        "kind": CURVE if (name, row["scheme"]) == ("topk", "baseline") else SELECTS if selects else ALL,
        "bytes": row["sent_bytes"],
        **_value(row[column], half),
        "label": label,
        "tip": f"{label}, {row['scheme']}\n{row['sent_bytes']:,.0f} bytes a step\n"
        f"{what}: {signed_with_half(row[column], half, 3)}\nn = {row['seeds']}",
    }


def _compared(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of each model with enough seeds."""
    models = grouped((row["model"], row) for row in rows if row["lost_mean"] is not None)
    most = {model: max(row["pairs"] for row in its) for model, its in models.items()}
    return {model: [row for row in its if 2 * row["pairs"] >= most[model]] for model, its in models.items()}


def _systems(rows: Rows, view: str) -> list[look.Row]:
    column, _ = VIEWS[view]
    known = sorted((row for row in rows if row[column]), key=lambda row: (row[column], row["lost_mean"]))
    shown = [_system(row, view) for row in known]
    spots = places(_points(shown, "at", _symlog, SMALL), [row["label"] for row in shown], *SMALL)
    return [row | {"spot": spot} for row, spot in zip(shown, spots, strict=True)]


def _system(row: Mapping[str, Any], view: str) -> look.Row:
    column, times = VIEWS[view]
    lost, half, at = row["lost_mean"], row["lost_half_width"], row[column] * times
    return {
        "model": row["model"],
        "view": view,
        "panel": f"{row['model']}: {row['metric_name']} lost\nrightwards: {view}",
        "kind": OURS if row["system"] in FROM_HERE else OTHERS,
        "at": at,
        **_value(lost, half),
        "label": row["title"],
        "tip": f"{row['model']}, {row['title']}\n{view}: {at:,.0f}\n"
        f"{row['metric_name']} lost: {signed_with_half(lost, half, 2)}\nn = {row['pairs']}",
    }


def _value(value: float, half: float | None) -> look.Row:
    return {
        "value": value,
        "low": None if half is None else value - half,
        "high": None if half is None else value + half,
    }
