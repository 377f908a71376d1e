"""By how much a metric may be worse and count as kept: derived here alone, from what the paper prints.

A margin is a loss that the paper states, or the largest one that it calls kept; what the rounding of the printed
numbers can hide; and what another seed makes, since the paper prints one run of each. The ledger shows the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.claims.claim import Book, Margin
from benchmarks.report.published import Published


@dataclass(frozen=True)
class Derived:
    """A margin, in the unit of the loss that it is compared with, and the sum that it comes from."""

    value: float
    reason: str


def margin_of(book: Book, limits: Mapping[str, Any], metric: str = "", level: float = 0.0) -> Derived:
    """Return the margin of a claim: its own number, that of a stated one, or the usual one of the metric.

    metric, level: the metric's name and its mean on the side that is compared with, for the usual one.
    """
    given, noise = limits.get("margin"), float(limits.get("noise", book.noise))
    if given is None:
        return _usual(book.margins[metric], noise, level, bool(limits.get("relative")))
    if not isinstance(given, str):
        return Derived(float(given), str(limits.get("why", "")))
    one = book.published[given]
    return Derived(one.value + one.rounding + noise, _sum(f"{one.value:g} {one.unit} stated", one.rounding, noise))


def loss_between(against: Published, tested: Published, percent: bool) -> tuple[float, float]:
    """Return by how much the one is worse as printed, and at most before both were rounded."""
    sign = 1 if against.unit == "ppl" else -1
    printed = sign * (tested.value - against.value)
    base = against.value - against.rounding if sign > 0 else against.value + against.rounding
    most = printed + tested.rounding + against.rounding
    return (100 * printed / against.value, 100 * most / base) if percent else (printed, most)


def _usual(margin: Margin, noise: float, level: float, relative: bool) -> Derived:
    printed, most = loss_between(margin.against, margin.tested, margin.percent)
    unit = "%" if margin.percent else "points"
    stated = (
        f"{printed:.2f} {unit} called kept ({margin.against.value:g} to {margin.tested.value:g}, {margin.tested.id})"
    )
    text = _sum(stated, most - printed, noise)
    value = most + noise
    if margin.percent and not relative:
        return Derived(value * level / 100, f"{text}, of {level:.2f}")
    return Derived(100 * value / level if relative and not margin.percent else value, text)


def _sum(stated: str, rounding: float, noise: float) -> str:
    return f"{stated} + {rounding:.2g} rounding + {noise:g} another seed or machine"
