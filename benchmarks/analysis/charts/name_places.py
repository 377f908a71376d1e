"""Place names beside the points of a figure so that they cover neither one another nor points."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import altair as alt

from benchmarks.analysis.charts.look import NEAR

LETTER, ASCENT, DESCENT = 4.7, 7.0, 2.0
"""Pixels of a name in font size 8: width of a letter, height above the line, depth below."""
POINT, FARTHER = 3.5, 2.0
"""Half a point in pixels; and the pixels a name may cover before the next spot is preferred."""


class Spot(NamedTuple):
    """The place of a name relative to its point."""

    align: Literal["left", "right"]
    right: int
    down: int


SPOTS = tuple(
    spot for down in (-3, 9, -13, 19, -23, 29, -33, 39) for spot in (Spot("left", 5, down), Spot("right", -5, down))
)
"""Places for a name, the better ones first."""
NO_SPOT = -1
"""Used for a spot if the name is left out."""
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


def name_layers(points: alt.Chart) -> Iterator[alt.Chart]:
    """Yield layers with the `label` of each row of `points` at its `spot`."""
    for spot, (align, right, down) in enumerate(SPOTS):
        here = points.transform_filter(alt.datum.spot == spot)
        yield here.mark_text(align=align, dx=right, dy=down, fontSize=8, aria=False).encode(text="label:N")


def places(
    points: Sequence[tuple[float, float]], names: Sequence[str], width: float, height: float, most: float = math.inf
) -> list[int]:
    """Return, for each point, the index of its name's spot in SPOTS, chosen one after the other.

    points: right and down, in pixels of a panel of `width` and `height`. A name goes where it is near its point and
    covers little of earlier names, of all points and of the area outside of the panel. It gets NO_SPOT if it would
    cover more than `most` pixels anywhere.
    """
    marks = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in points]
    taken: list[Box] = []
    found = []
    for (x, y), name in zip(points, names, strict=True):
        boxes = [_box(x, y, len(name) * LETTER, spot) for spot in SPOTS]
        covered = [sum(_common(box, one) for one in (*taken, *marks)) + _outside(box, width, height) for box in boxes]
        costs = [area + FARTHER * place for place, area in enumerate(covered)]
        best = costs.index(min(costs))
        if covered[best] > most:
            found.append(NO_SPOT)
            continue
        taken.append(boxes[best])
        found.append(best)
    return found


def panel_points(
    across: Sequence[float], up: Sequence[float], reach: Sequence[float], width: float, height: float, aside: float
) -> list[tuple[float, float]]:
    """Return where points lie in a panel, right and down, in pixels.

    across, up: values on linear scales. `reach` has all values drawn upwards, including bars; `aside` is kept free on
    the left and on the right, and NEAR above and below.
    """
    x = scaled(across, (min(across), max(across)), aside, width - aside)
    y = scaled(up, (min(reach), max(reach)), height - NEAR, NEAR)
    return list(zip(x, y, strict=True))


def symlog(value: float) -> float:
    """Return the place of a value on a symlog scale whose constant is 1."""
    return math.copysign(math.log1p(abs(value)), value)


def scaled(values: Sequence[float], ends: tuple[float, float], first: float, last: float) -> list[float]:
    """Return `values` as pixels: the lesser of `ends` is at `first`, the greater at `last`; in the middle if equal."""
    low, high = ends
    return [first + (last - first) * ((value - low) / (high - low) if high > low else 0.5) for value in values]


def _box(x: float, y: float, width: float, spot: Spot) -> Box:
    left = x + spot.right - (width if spot.align == "right" else 0)
    return left, y + spot.down - ASCENT, left + width, y + spot.down + DESCENT


def _common(one: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    along = min(one[3], other[3]) - max(one[1], other[1])
    return across * along if across > 0 and along > 0 else 0.0


def _outside(box: Box, width: float, height: float) -> float:
    """Return the area of a box beyond a panel; to the right, names may extend a little into empty space."""
    inside = _common(box, (0, 0, width + 60, height))
    return (box[2] - box[0]) * (box[3] - box[1]) - inside
