"""Means with their 95 % intervals, and the conclusions that these allow.

Intervals are Student's t with n - 1 degrees of freedom, of a mean over seeds, or of the mean of the differences
between two settings seed by seed. The latter is narrower if a seed moves both settings alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from scipy.special import nctdtr, stdtr, stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of n values, and half the width of its interval; None for fewer than two values."""

    mean: float
    half_width: float | None
    n: int

    @property
    def verdict(self) -> str:
        """The conclusion that the interval allows about a difference from zero, in one to three words."""
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


def columns(name: str, found: Interval | None) -> dict[str, float | None]:
    """Return the columns of a row with the mean, and with half of the interval."""
    return {f"{name}_mean": found.mean if found else None, f"{name}_half_width": found.half_width if found else None}


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of independent `values` (at least one) and the two values that bound its 95 % interval.

    It assumes no distribution. At each end k values are left out: the largest k for which at most k heads in n tosses
    of a coin have a probability of at most 2.5 %. With fewer than six values even their full range has less than 95 %.
    """
    ordered, n, left_out = sorted(values), len(values), 0
    while sum(math.comb(n, heads) for heads in range(left_out + 2)) <= 2**n * (1 - CONFIDENCE) / 2:
        left_out += 1
    return median(ordered), ordered[left_out], ordered[n - 1 - left_out]


def paired(values: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    """Return the differences values - others for the seeds that both have, in order."""
    return [values[seed] - others[seed] for seed in sorted(values.keys() & others.keys())]


def p_beyond(found: Interval, limit: float) -> float | None:
    """Return the two-sided p-value of the mean being `limit`: below 0.05 if and only if the interval excludes `limit`.

    Returns None without an interval.
    """
    if found.half_width is None:
        return None
    error = found.half_width / t_quantile((1 + CONFIDENCE) / 2, found.n - 1)
    if not error:
        return float(found.mean == limit)
    return 2 * float(stdtr(found.n - 1, -abs(found.mean - limit) / error))


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t."""
    return float(stdtrit(degrees, probability))


def power(n: int, room: float) -> float:
    """Return how often the interval of n values whose true mean is zero ends below `room` standard deviations.

    This is the probability that a noncentral t variable with n - 1 degrees of freedom exceeds the quantile of the
    interval.
    """
    return float(1 - nctdtr(n - 1, room * math.sqrt(n), t_quantile((1 + CONFIDENCE) / 2, n - 1)))
