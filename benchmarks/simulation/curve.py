"""Seconds by number of elements, as piecewise linear curves, many at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resireduce.merging.rules import Array


@dataclass(frozen=True)
class Curve:
    """Curves with a `start`, and a change of slope at each of the `knots`: `start` + sum of slopes x (n - knot)."""

    start: Array
    """Seconds, (cases,)."""
    knots: Array
    """Elements, (cases, points)."""
    slopes: Array
    """Seconds per element, (cases, points)."""

    @classmethod
    def line(cls, start: float, per_element: float) -> "Curve":
        """Return one case's curve that is a straight line."""
        return cls(np.array([start]), np.zeros((1, 1)), np.array([[per_element]]))

    @classmethod
    def through(cls, elements: Sequence[int], seconds: Sequence[float]) -> "Curve":
        """Return one case's curve through points, whose `elements` rise; beyond them the nearest segment continues.

        To the left it never falls below 0 nor rises above the first point's `seconds`. A single point gives a line
        through it and 0.
        """
        if len(elements) == 1:
            return cls.line(0.0, seconds[0] / elements[0])
        between = np.diff(seconds) / np.diff(elements)
        start = float(np.clip(seconds[0] - between[0] * elements[0], 0.0, seconds[0]))
        slopes = np.array([(seconds[0] - start) / elements[0], *between])
        knots = np.array([0, *elements[:-1]], dtype=float)
        return cls(np.array([start]), knots[None], np.diff(slopes, prepend=0.0)[None])

    @classmethod
    def together(cls, curves: Sequence["Curve"]) -> "Curve":
        """Return one curve with the cases of all `curves`."""
        most = max(curve.knots.shape[1] for curve in curves)

        def wide(values: Array) -> Array:
            return np.pad(values, ((0, 0), (0, most - values.shape[1])))

        return cls(
            np.concatenate([curve.start for curve in curves]),
            np.concatenate([wide(curve.knots) for curve in curves]),
            np.concatenate([wide(curve.slopes) for curve in curves]),
        )

    def taken(self, places: np.ndarray) -> "Curve":
        """Return the cases at `places`."""
        return Curve(self.start[places], self.knots[places], self.slopes[places])

    def __call__(self, elements: Array) -> Array:
        """Return the seconds for `elements`, (cases,) or (cases, anything); 0 for no elements."""
        more = (slice(None), *[None] * (elements.ndim - 1))
        seconds = self.start[more] + np.zeros_like(elements)
        for point in range(self.knots.shape[1]):
            seconds += self.slopes[:, point][more] * np.maximum(elements - self.knots[:, point][more], 0.0)
        return np.where(elements > 0, np.maximum(seconds, 0.0), 0.0)
