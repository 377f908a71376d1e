"""Losses of a metric, paired by seed, as the tests of accuracy share them.

A loss is in points of the metric, or in per cent of the other side's; it is positive for worse in whichever direction
the metric counts. Intervals are Student's t over the seeds that both sides have. Seeds that do not differ do not count.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.analysis.claims.copies import same_histories
from benchmarks.analysis.claims.select import Case, Comparison, common_seeds, role_name
from benchmarks.analysis.claims.verdict import NOT_REPRODUCED, Bounds, Undecided, bounds, number
from benchmarks.analysis.load_run import Hole
from benchmarks.analysis.statistics import CONFIDENCE, Interval, interval, t_quantile
from benchmarks.core.record import CellResult

BOTH = ("tested", "against")
ROUNDING = 1e-9
"""Largest difference between equal losses, as a share of the metric, by rounding alone."""


@dataclass(frozen=True)
class Loss:
    """Mean loss over seeds, its interval, and the mean metric it is compared with."""

    estimate: Interval
    bounds: Bounds
    unit: str
    level: float

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return self.estimate.mean

    @property
    def spread(self) -> float:
        """The standard deviation between seeds."""
        error = float(self.estimate.half_width or 0) / t_quantile((1 + CONFIDENCE) / 2, self.estimate.n - 1)
        return error * math.sqrt(self.estimate.n)


def losses(found: Comparison, tested: str, against: str, relative: bool) -> dict[int, float]:
    """Return by seed how much worse `tested` is than `against`; relative losses are in per cent."""
    values = {}
    for seed in found.seeds(tested, against):
        one, other = found.results[tested][seed], found.results[against][seed]
        loss = float(other.metric or 0) - float(one.metric or 0)
        loss = loss if other.higher_is_better else -loss
        values[seed] = 100 * loss / float(other.metric or 1) if relative else loss
    return values


def mean_loss(case: Case, found: Comparison, tested: str = "tested", against: str = "against") -> Loss:
    """Return the loss with its interval. Raises Undecided, with the reason, if there is none.

    A cell of `tested` that diverged where the other one finished decides, except in the control (`not_worse`).
    Reasons: missing or diverged cells, fewer than two seeds, or seeds without spread.
    """
    if tested != "control":
        check_diverged(found, tested, against)
    common_seeds(found, tested, against)
    relative = bool(case.limits.get("relative"))
    values = losses(found, tested, against, relative)
    records = found.records(tested, against)
    others = [found.results[against][seed] for seed in values]
    unit = "%" if relative else unit_of(others[0])
    mean = interval(list(values.values()))
    assert mean is not None
    within = bounds(mean)
    if within is None:
        text = f"{'worse' if mean.mean > 0 else 'better'} by {number(abs(mean.mean))} {unit}" if mean.mean else "equal"
        text = f"n = 1: seed {next(iter(values))} alone has no interval; {text}"
        raise Undecided(text, value=mean.mean, unit=unit, seeds=1, results=records)
    level = sum(float(one.metric or 0) for one in others) / len(others)
    if odd := without_spread(found, (tested, against)) or _equal_losses(values, level):
        raise Undecided(odd, value=mean.mean, unit=unit, seeds=mean.n, results=records)
    return Loss(mean, within, unit, level)


def without_spread(found: Comparison, roles: Sequence[str]) -> str | None:
    """Return which seeds of a role have one history; None if all differ."""
    for role in roles:
        for alike in same_histories([found.results[role][seed] for seed in found.seeds(role)]):
            if len(alike) > 1:
                one, other = sorted(record.cell.seed for record in alike)[:2]
                name = role_name(alike[0].cell.name)
                return f"seeds {one} and {other} of {name} have the same history: they are not two trainings"
    return None


def _equal_losses(values: dict[int, float], level: float) -> str | None:
    if max(values.values()) - min(values.values()) > ROUNDING * abs(level):
        return None
    same = number(next(iter(values.values())), 4)
    return f"{len(values)} seeds differ by the same {same}: they have no spread to judge by"


def check_diverged(found: Comparison, tested: str, against: str) -> None:
    """Raise Undecided, as not reproduced, if a cell diverged while the other one of its seed finished."""
    for seed, hole in sorted(found.holes.get(tested, {}).items()):
        if hole.has_diverged and seed in found.results.get(against, {}):
            record = found.results[against][seed]
            reason = f"seed {seed} of {hole.name} diverged ({hole.reason}), that of {record.cell.name} finished"
            results = (record, *left_by([hole]))
            raise Undecided(reason, NOT_REPRODUCED, seeds=len(found.seeds(tested, against)), results=results)


def left_by(holes: Iterable[Hole]) -> tuple[CellResult, ...]:
    """Return the records of trainings that diverged: their origins count as those of others do."""
    return tuple(hole.record for hole in holes if hole.record is not None)


def unit_of(record: CellResult) -> str:
    """Return the unit of a difference of the metric."""
    return "ppl" if record.metric_name == "perplexity" else "points"
