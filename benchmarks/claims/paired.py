"""Losses of a metric, paired by seed, as the tests of accuracy share them.

A loss is in points of the metric, or in per cent of the other side's, and positive for worse whichever way the metric
counts. Intervals are Student's t over the seeds that both sides have.
"""

from dataclasses import dataclass

from benchmarks.claims.case import Case, lacking
from benchmarks.claims.select import Comparison
from benchmarks.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, Bounds, Verdict, bounds, number
from benchmarks.record import CellResult
from benchmarks.report.student import interval

BOTH = ("tested", "against")


@dataclass(frozen=True)
class Loss:
    """Mean loss of tested over so many seeds, its interval, and the mean metric that it is compared with."""

    mean: float
    interval: Bounds
    seeds: int
    unit: str
    level: float


def losses(found: Comparison, tested: str, against: str, relative: bool) -> dict[int, float]:
    """Return by how much tested is worse than against, by seed; relative losses in per cent."""
    values = {}
    for seed in found.seeds(tested, against):
        one, other = found.results[tested][seed], found.results[against][seed]
        loss = float(other.metric or 0) - float(one.metric or 0)
        loss = loss if other.higher_is_better else -loss
        values[seed] = 100 * loss / float(other.metric or 1) if relative else loss
    return values


def mean_loss(case: Case, found: Comparison) -> Loss | Verdict:
    """Return the loss with its interval; or why there is none: missing cells, a diverged one, fewer than two seeds."""
    if failed := diverged(found) or lacking(found, *BOTH):
        return failed
    relative = bool(case.limits.get("relative"))
    values = losses(found, *BOTH, relative)
    if not values:
        return Verdict(status=INCONCLUSIVE, reason=with_missing("no seed in common", found))
    others = [found.results["against"][seed] for seed in values]
    if unlike := _unlike([*others, *(found.results["tested"][seed] for seed in values)]):
        return Verdict(status=INCONCLUSIVE, reason=with_missing(unlike, found), results=found.records(*BOTH))
    unit = "%" if relative else unit_of(others[0])
    mean = interval(list(values.values()))
    assert mean is not None
    within = bounds(mean)
    if within is None:
        return _one_seed(found, next(iter(values)), mean.mean, unit)
    return Loss(mean.mean, within, mean.n, unit, sum(float(one.metric or 0) for one in others) / len(others))


def _unlike(records: list[CellResult]) -> str | None:
    """Return why metrics of records cannot be subtracted; None if they can."""
    for name in ("metric_name", "higher_is_better"):
        values = dict.fromkeys(str(getattr(record, name)) for record in records)
        if len(values) > 1:
            return f"{name} is not the same in all records: {', '.join(values)}"
    return None


def _one_seed(found: Comparison, seed: int, loss: float, unit: str) -> Verdict:
    text = (
        f"n = 1: seed {seed} alone has no interval; {'worse' if loss > 0 else 'better'} by {number(abs(loss))} {unit}"
    )
    return Verdict(
        status=INCONCLUSIVE,
        reason=with_missing(text if loss else text.partition(";")[0] + "; equal", found),
        value=loss,
        unit=unit,
        seeds=1,
        results=found.records(*BOTH),
    )


def diverged(found: Comparison) -> Verdict | None:
    """Return the verdict of a cell that diverged where the one that it is compared with finished, same seed."""
    for seed, hole in sorted(found.holes.get("tested", {}).items()):
        if hole.status == "diverged" and seed in found.results.get("against", {}):
            record = found.results["against"][seed]
            reason = f"seed {seed} of {hole.name} diverged ({hole.reason}), that of {record.cell.name} finished"
            return Verdict(status=NOT_REPRODUCED, reason=reason, seeds=len(found.seeds(*BOTH)), results=(record,))
    return None


def with_missing(reason: str, found: Comparison) -> str:
    """Return the reason, and which seeds are missing and why."""
    missing = found.missing(*BOTH)
    return f"{reason}; {missing}" if missing else reason


def unit_of(record: CellResult) -> str:
    """Return what a difference of the metric is counted in."""
    return "ppl" if record.metric_name == "perplexity" else "points"
