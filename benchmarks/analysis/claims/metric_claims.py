"""Claims about metrics: kept within a margin, better, or the same in every digit; and how many seeds can show it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, stdev
from typing import Any

from benchmarks.analysis.claims.claim import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Book,
    Bounds,
    Claim,
    Published,
    Scope,
    Undecided,
    Verdict,
    below,
    bounds,
    number,
    shown,
    written,
)
from benchmarks.analysis.claims.evidence import CONTROL, Case, Comparison, common_seeds
from benchmarks.analysis.statistics import CONFIDENCE, Interval, interval, p_beyond, power, t_quantile
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.core.record import CellResult

# --- How much worse a metric may be and still count as kept, and how many seeds can show it, paired by seed ---
#
# A margin is derived only here. It is a loss that the paper states, or the largest one that it calls kept, plus what
# the rounding of the printed numbers can hide, plus the effect of another seed, as the paper prints one run of each.
# The ledger shows the sum. With n seeds whose differences have standard deviation s, the test passes if the upper end
# of their 95 % interval is below the margin m. `benchmarks.analysis.statistics.power` has the probability of passing
# at a true difference of zero.


POWER = 0.8
MOST = 200
"""Most seeds considered; more are as good as never."""
REFERENCE = ROOT / "results/reference/mini.json"
"""Source of the small models' differences between `w+2d` and full residuals, over seeds."""


@lru_cache
def seeds_needed(margin: float, spread: float) -> int | None:
    """Return how many seeds show a true zero with a probability of 80 %; None if more than 200 are needed."""
    if spread <= 0 or margin <= 0:
        return None
    return next((seeds for seeds in range(2, MOST + 1) if power(seeds, margin / spread) >= POWER), None)


Metrics = tuple[str, list[float], list[float]]
"""A metric's name, and its values with `w+2d` and with full residuals, in the same order of seeds."""


@lru_cache
def reference_metrics() -> dict[str, Metrics]:
    """Return the committed metrics of each small model."""
    return metrics_of(load_json(REFERENCE)["rows"])


def metrics_of(those: Sequence[Mapping[str, Any]]) -> dict[str, Metrics]:
    """Return the metrics by model, from rows of `python -m benchmarks summary intervals`."""
    rows = {(row["model"], row["scheme"]): row for row in those if row["gradients"] == "kept"}
    found = {}
    for model in dict.fromkeys(model for model, _ in rows):
        tested, against = rows[model, "w+2d"], rows[model, "baseline"]
        seeds = [seed for seed in against["metrics"] if seed in tested["metrics"]]
        values = [[float(row["metrics"][seed]) for seed in seeds] for row in (tested, against)]
        found[model] = (str(against["metric_name"]), values[0], values[1])
    return found


def seeds_by_reference(book: Book, claim: Claim, scope: Scope) -> int | None:
    """Return the seeds that an accuracy claim needs, by the spread of the small model that stands in for its model."""
    (model,), stated = scope.models, claim.published.get("against") if scope is claim.paper else None
    metrics = reference_metrics().get(book.stand_ins.get(model, model))
    level = stated.value if stated else None
    return metrics and seeds_needed(*margin_and_spread(book, metrics, scope.limits, level))


def margin_and_spread(
    book: Book, metrics: Metrics, limits: Mapping[str, Any], level: float | None = None
) -> tuple[float, float]:
    """Return the margin of a test with these limits, and the standard deviation of a small model's differences.

    level: the value that a relative loss refers to, if it is another model's metric.
    """
    name, tested, against = metrics
    differences = [one - other for one, other in zip(tested, against, strict=True)]
    relative = bool(limits.get("relative")) or name == "perplexity"
    level = mean(against) if level is None or name == "perplexity" else level
    margin = margin_of(book, {**limits, "relative": relative}, name, level)
    return margin.value, stdev([100 * one / level for one in differences] if relative else differences)


@dataclass(frozen=True)
class Derived:
    """A margin, in the unit of the loss it is compared with, and the sum it comes from."""

    value: float
    reason: str


def margin_of(book: Book, limits: Mapping[str, Any], metric: str = "", level: float = 0.0) -> Derived:
    """Return the margin of a claim: its own number, that of a stated loss, or the usual one of the metric.

    metric, level: for the usual one, the metric's name and its mean on the side compared with.
    """
    given, noise = limits.get("margin"), float(limits.get("noise", book.noise))
    if isinstance(given, str):
        stated = book.published[given]
        rounding, text = stated.rounding, f"{stated.value:g} {stated.unit} stated"
        value = stated.value + rounding + noise
    elif given is not None:
        return Derived(float(given), str(limits.get("why", "")))
    else:
        margin = book.margins[metric]
        printed, most = loss_between(margin.against, margin.tested, margin.percent)
        pair = f"{margin.against.value:g} to {margin.tested.value:g}, {margin.tested.id}"
        text = f"{printed:.2f} {'%' if margin.percent else 'points'} called kept ({pair})"
        rounding, value = most - printed, most + noise
    text += f" + {rounding:.2g} rounding + {noise:g} another seed or machine"
    relative = bool(limits.get("relative"))
    if given is None and margin.percent and not relative:
        return Derived(value * level / 100, f"{text}, of {level:.2f}")
    return Derived(100 * value / level if given is None and relative and not margin.percent else value, text)


def loss_between(against: Published, tested: Published, percent: bool) -> tuple[float, float]:
    """Return the loss from `against` to `tested` as printed, and the largest one possible before rounding."""
    sign = 1 if against.unit == "ppl" else -1
    printed = sign * (tested.value - against.value)
    base = against.value - against.rounding if sign > 0 else against.value + against.rounding
    most = printed + tested.rounding + against.rounding
    return (100 * printed / against.value, 100 * most / base) if percent else (printed, most)


# --- Losses of a metric, paired by seed, as the tests of accuracy share them ---
#
# A loss is in points of the metric, or in per cent of the other side's; it is positive for worse in whichever
# direction the metric counts. Intervals are Student's t over the seeds that both sides have. Seeds that do not differ
# do not count.


BOTH = ("tested", "against")
ROUNDING = 1e-9
"""Largest difference between equal losses, as a share of the metric, by rounding alone."""


@dataclass(frozen=True)
class Loss:
    """Mean loss over seeds, with its interval."""

    estimate: Interval
    bounds: Bounds
    unit: str
    margin: Derived
    """The largest loss that counts as none, and the smallest gain that is worth showing."""

    @property
    def seeds_needed(self) -> int | None:
        """Seeds that show a true zero, by the spread between these."""
        error = float(self.estimate.half_width or 0) / t_quantile((1 + CONFIDENCE) / 2, self.estimate.n - 1)
        return seeds_needed(self.margin.value, error * math.sqrt(self.estimate.n))

    def verdict(self, limit: float, sign: int, **said: Any) -> Verdict:
        """Return a verdict whose turning point is `limit`; its value is the loss, or with the other sign the gain."""
        return Verdict(
            value=sign * self.estimate.mean,
            interval=self.bounds if sign > 0 else (-self.bounds[1], -self.bounds[0]),
            unit=self.unit,
            seeds=self.estimate.n,
            seeds_needed=self.seeds_needed,
            p_value=p_beyond(self.estimate, limit),
            **said,
        )


def mean_loss(case: Case, tested: str = "tested", sign: int = 1) -> Loss:
    """Return the loss against the other side, with its interval. Raises Undecided, with the reason, if there is none.

    A cell of `tested` that diverged where the other one finished decides, except in the control (`not_worse`).
    Reasons: missing or diverged cells, fewer than two seeds, or seeds without spread; then the value is the loss, or
    with the other `sign` the gain.
    """
    found, relative = case.only, bool(case.scope.limits.get("relative"))
    if tested != CONTROL:
        check_diverged(found)
    seeds = common_seeds(found, tested, "against")
    others, records = [found.results["against"][seed] for seed in seeds], found.records(tested, "against")
    values, unit = [], "%" if relative else unit_of(others[0])
    for seed, other in zip(seeds, others, strict=True):
        loss = float(other.metric or 0) - float(found.results[tested][seed].metric or 0)
        loss = loss if other.higher_is_better else -loss
        values.append(100 * loss / float(other.metric or 1) if relative else loss)
    estimate = interval(values)
    assert estimate is not None
    known: dict[str, Any] = {"value": sign * estimate.mean, "unit": unit, "seeds": len(seeds), "results": records}
    within, level = bounds(estimate), sum(float(one.metric or 0) for one in others) / len(others)
    if within is None:
        text = f"{'worse' if values[0] > 0 else 'better'} by {number(abs(values[0]))} {unit}" if values[0] else "equal"
        raise Undecided(f"n = 1: seed {seeds[0]} alone has no interval; {text}", **known)
    if max(values) - min(values) <= ROUNDING * abs(level):
        same = f"{len(values)} seeds differ by the same {number(values[0], 4)}: they have no spread to judge by"
        raise Undecided(same, **known)
    return Loss(estimate, within, unit, margin_of(case.book, case.scope.limits, str(others[0].metric_name), level))


def check_diverged(found: Comparison) -> None:
    """Raise Undecided, as not reproduced, if a tested cell diverged while the other one of its seed finished."""
    for seed, hole in sorted(found.holes.get("tested", {}).items()):
        if hole.has_diverged and seed in found.results.get("against", {}):
            record = found.results["against"][seed]
            reason = f"seed {seed} of {hole.name} diverged ({hole.reason}), that of {record.cell.name} finished"
            results = (record, *filter(None, [hole.record]))
            raise Undecided(reason, NOT_REPRODUCED, seeds=len(found.seeds(*BOTH)), results=results)


def unit_of(record: CellResult) -> str:
    """Return the unit of a difference of the metric."""
    return "ppl" if record.metric_name == "perplexity" else "points"


# --- Is a metric kept: not worse by more than a margin, with confidence, on a task that can tell? ---
#
# Non-inferiority, paired by seed: reproduced if the whole 95 % interval of the loss lies below the margin, not
# reproduced if it lies wholly above, else inconclusive. The control is training without residuals. Unless the whole
# interval of its loss lies above the margin, the test would pass anything, and the verdict is inconclusive; as it is
# where a scheme gains more than all residuals are worth, which a metric in other units does.


def not_worse(case: Case) -> Verdict:
    """Judge whether `tested` keeps the metric of `against`; the control is training without residuals."""
    loss, records = mean_loss(case), case.only.records(*BOTH)
    margin, value = loss.margin, loss.estimate.mean
    status = below(loss.bounds, margin.value)
    reason = f"loss {written(value, loss.bounds, loss.unit)}, margin {number(margin.value)}"
    if status == REPRODUCED:
        tells, text, more = _control(case, margin, gain=-value)
        status, reason, records = REPRODUCED if tells else INCONCLUSIVE, f"{reason}; {text}", records + more
    says = f"95 % interval of the loss below {number(margin.value)} {loss.unit} = {margin.reason}"
    says += "; without residuals above it"
    return loss.verdict(margin.value, 1, status=status, reason=reason, tolerance=says, results=records)


def _control(case: Case, margin: Derived, gain: float) -> tuple[bool, str, tuple[CellResult, ...]]:
    """Return whether the records can tell, why, and the control's records, checked like the tested ones."""
    found = case.only
    if not found.results.get(CONTROL) and not found.holes.get(CONTROL):
        return False, f"the control, no residuals, is missing: {case.scope.command}", ()
    ended = {seed: hole for seed, hole in sorted(found.holes.get(CONTROL, {}).items()) if hole.has_diverged}
    # Their origins count as those of others do.
    left = tuple(hole.record for hole in ended.values() if hole.record)
    named = f"seed {', '.join(map(str, ended))} of it diverged, " if ended else ""
    if set(found.seeds(*BOTH)) <= ended.keys():  # where full residuals finished, it has lost everything
        return True, f"control, no residuals: {named}where full residuals finished", left
    try:
        lost = mean_loss(case, CONTROL)
    except Undecided as why:
        return False, f"control, no residuals: {named}{why}", (*why.verdict.results, *left)
    text = f"control: {named}without residuals the loss is {written(lost.estimate.mean, lost.bounds, lost.unit)}"
    records = (*found.records(CONTROL, "against"), *left)
    if gain > lost.estimate.mean > 0:  # more than all residuals are worth: its metric may be another one
        text += ", less than what is gained: are both metrics in the same units, on the same data?"
        return False, text, records
    if lost.bounds[0] > margin.value:
        return True, text, records
    return False, f"{text}, not seen to be above the margin: these records cannot tell", records


def better(case: Case) -> Verdict:
    """Judge whether the 95 % interval of the gain lies above zero and overlaps the published range."""
    loss, stated = mean_loss(case, sign=-1), _stated(case)
    gain, within = -loss.estimate.mean, (-loss.bounds[1], -loss.bounds[0])
    status = below(loss.bounds, 0.0)
    reason, says = f"gain {written(gain, within, loss.unit)}", "95 % interval of the gain above 0"
    if stated is not None:
        span = f"{number(stated[0])} to {number(stated[1])}"
        says += f", and not all of it outside of {span}"
        reason += f", published {span}"
        if status == REPRODUCED and (within[1] < stated[0] or within[0] > stated[1]):
            how = "by more than" if within[0] > stated[1] else "not by as much as"
            status, reason = NOT_REPRODUCED, f"{reason}: better, but {how} published"
    records = case.only.records(*BOTH)
    return loss.verdict(0.0, -1, status=status, reason=reason, tolerance=says, results=records)


def _stated(case: Case) -> Bounds | None:
    """Return the range of gains that the paper states for its own models."""
    low, high, value = (case.published(role) for role in ("low", "high", "value"))
    if low is not None and high is not None:
        return low, high
    tolerance = case.scope.limits.get("tolerance")
    return None if value is None or tolerance is None else (value - tolerance, value + tolerance)


# --- Do two ways of training give the same metrics, in every digit and at every evaluation? ---


def identical(case: Case) -> Verdict:
    """Judge every seed that both sides have; one is enough, and all must be equal."""
    found = case.only
    seeds, records = common_seeds(found, *BOTH), found.records(*BOTH)
    pairs = [(found.results["tested"][seed], found.results["against"][seed]) for seed in seeds]
    differ = [one.cell.seed for one, other in pairs if _outcome(one) != _outcome(other)]
    points, several = min(len(one.metric_history) for one in records), "s" if len(seeds) > 1 else ""
    equal = f"equal in every digit at {points} evaluations, {len(seeds)} seed{several}"
    return Verdict(
        status=shown(not differ),
        reason=f"{len(differ)} of {len(seeds)} seeds differ, the first is {differ[0]}" if differ else equal,
        value=max(abs(float(one.metric or 0) - float(other.metric or 0)) for one, other in pairs),
        unit=unit_of(records[0]),
        tolerance="equal in every digit",
        seeds=len(seeds),
        results=records,
    )


def _outcome(record: CellResult) -> tuple[object, ...]:
    return record.metric, record.metrics, [[*pair] for pair in record.metric_history]
