"""What a test of a claim says, and how its numbers are written."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.record import CellResult
from benchmarks.report.labels import MINUS
from benchmarks.report.student import Interval

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, NOT_RUN = "reproduced", "not reproduced", "inconclusive", "not run"
Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one test; value, interval and published are in `unit`."""

    status: str
    reason: str
    value: float | None = None
    interval: Bounds | None = None
    published: float | None = None
    unit: str | None = None
    tolerance: str | None = None
    seeds: int = 0
    seeds_needed: int | None = None
    """For 80 % power, from the spread of the records."""
    p_value: float | None = None
    """Two-sided, of the value lying where the verdict turns; None of what is no estimate."""
    results: tuple[CellResult, ...] = field(default_factory=tuple)
    """The records that were compared."""


def bounds(found: Interval) -> Bounds | None:
    """Return the interval's ends; None for a single value."""
    return None if found.half_width is None else (found.mean - found.half_width, found.mean + found.half_width)


def below(interval: Bounds, limit: float) -> str:
    """Return the status of "less than limit": the whole interval must lie on one side."""
    return REPRODUCED if interval[1] < limit else NOT_REPRODUCED if interval[0] > limit else INCONCLUSIVE


def number(value: float, digits: int = 2) -> str:
    """Return a number with so many digits after the point, without a sign at zero."""
    text = f"{abs(value):.{digits}f}"
    return f"{MINUS}{text}" if value < 0 and float(text) else text


def written(value: float, interval: Bounds | None, unit: str) -> str:
    """Return a value with its interval and unit."""
    within = f" [{number(interval[0])}, {number(interval[1])}]" if interval else ""
    return f"{number(value)}{within} {unit}"


def worst(statuses: Iterable[str]) -> str:
    """Return what is left of a claim with several groups: all must reproduce it, one contrary one refutes it."""
    order = (NOT_REPRODUCED, INCONCLUSIVE, NOT_RUN, REPRODUCED)
    return min(statuses, key=order.index)
