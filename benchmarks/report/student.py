"""Means with their 95 % intervals, and what these allow to say. Standard library only.

Intervals are Student's t with n - 1 degrees of freedom: of a mean over seeds, and of the mean of differences between
two settings seed by seed, which is narrower where a seed moves both alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of n values, and half the width of its interval; None for fewer than two values."""

    mean: float
    half_width: float | None
    n: int

    @property
    def verdict(self) -> str:
        """What the interval allows to say of a difference from zero, in a word or three."""
        if self.half_width is None:
            return "n = 1"
        if abs(self.mean) <= self.half_width:
            return "equal" if self.mean == self.half_width == 0 else "no difference seen"
        return "higher" if self.mean > 0 else "lower"


def interval(values: Sequence[float]) -> Interval | None:
    """Return mean and interval of independent values; None for none."""
    if not values:
        return None
    n = len(values)
    half_width = t_quantile((1 + CONFIDENCE) / 2, n - 1) * stdev(values) / math.sqrt(n) if n > 1 else None
    return Interval(mean(values), half_width, n)


def paired(values: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    """Return the differences values - others for the seeds that both have, in order."""
    return [values[seed] - others[seed] for seed in sorted(values.keys() & others.keys())]


def half_width(values: Sequence[float]) -> float | None:
    """Return what stands behind ± in every table: half of the interval of the mean; None for fewer than two values."""
    found = interval(values)
    return None if found is None else found.half_width


def p_beyond(found: Interval, limit: float, degrees: int | None = None) -> float | None:
    """Return the two-sided p-value of the mean being `limit`: below 0.05 if and only if its interval leaves it out.

    degrees: of freedom, n - 1 if not given. None without an interval.
    """
    if found.half_width is None:
        return None
    degrees = degrees or found.n - 1
    error = found.half_width / t_quantile((1 + CONFIDENCE) / 2, degrees)
    if not error:
        return float(found.mean == limit)
    return 2 * (1 - t_distribution(abs(found.mean - limit) / error, degrees))


@lru_cache
def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t, for a probability from 0.5 to below 1, by bisection of its distribution."""
    low, high = 0.0, 1.0
    while t_distribution(high, degrees) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_distribution(middle, degrees) < probability else (low, middle)
    return high


def t_distribution(t: float, degrees: int) -> float:
    """Return P(T <= t) for t >= 0 (Abramowitz and Stegun, "Handbook of mathematical functions", 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, odd = math.cos(angle), degrees % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(3 if odd else 2, degrees + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return 0.5 + inside / 2
