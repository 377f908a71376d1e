"""Is a metric kept: not worse by more than a margin, with confidence, on a task that can tell?

Non-inferiority, paired by seed: reproduced if the whole 95 % interval of the loss lies below the margin, not reproduced
if it lies wholly above, else inconclusive. The control is training without residuals. Unless the whole interval of its
loss lies above the margin, the test would pass anything, and the verdict is inconclusive; as it is where a scheme gains
more than all residuals are worth, which a metric in other units does.
"""

from dataclasses import replace

from benchmarks.analysis.claims.margins import Derived, loss_between, margin_of, seeds_needed
from benchmarks.analysis.claims.paired import BOTH, Loss, left_by, mean_loss
from benchmarks.analysis.claims.select import Case, Comparison
from benchmarks.analysis.claims.verdict import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Bounds,
    Undecided,
    Verdict,
    below,
    number,
    written,
)
from benchmarks.analysis.statistics import p_beyond
from benchmarks.core.record import CellResult

CONTROL = "control"


def not_worse(case: Case) -> Verdict:
    """Judge whether `tested` keeps the metric of `against`; the control is training without residuals."""
    found = case.only
    try:
        loss = mean_loss(case, found)
    except Undecided as why:
        return replace(why.verdict, published=published_loss(case))
    margin = _margin(case, loss)
    status, records = below(loss.bounds, margin.value), found.records(*BOTH)
    reason = f"loss {written(loss.mean, loss.bounds, loss.unit)}, margin {number(margin.value)}"
    if status == REPRODUCED:
        tells, text, more = _control(case, found, margin, gain=-loss.mean)
        status, reason = (REPRODUCED if tells else INCONCLUSIVE), f"{reason}; {text}"
        records += more
    return Verdict(
        status=status,
        reason=reason,
        value=loss.mean,
        interval=loss.bounds,
        published=published_loss(case),
        unit=loss.unit,
        tolerance=f"95 % interval of the loss below {number(margin.value)} {loss.unit} = {margin.reason}; without "
        "residuals above it",
        seeds=loss.estimate.n,
        seeds_needed=seeds_needed(margin.value, loss.spread),
        p_value=p_beyond(loss.estimate, margin.value),
        results=records,
    )


def published_loss(case: Case) -> float | None:
    """Return the loss between the two sides as the paper states them, in the unit that is judged."""
    if (value := case.published()) is not None:
        return value
    stated = case.claim.published
    if not case.is_paper or not set(BOTH) <= set(stated):
        return None
    return round(loss_between(stated["against"], stated["tested"], bool(case.limits.get("relative")))[0], 4)


def _control(case: Case, found: Comparison, margin: Derived, gain: float) -> tuple[bool, str, tuple[CellResult, ...]]:
    """Return whether the records can tell, why, and the control's records, checked like the tested ones.

    They cannot if the tested side has a larger `gain` than all residuals are worth: its metric may be another one.
    """
    if not found.results.get(CONTROL) and not found.holes.get(CONTROL):
        return False, f"the control, no residuals, is missing: {case.scope.command}", ()
    ended = {seed: hole for seed, hole in sorted(found.holes.get(CONTROL, {}).items()) if hole.has_diverged}
    diverged, left = [*ended], left_by(ended.values())
    named = f"seed {', '.join(map(str, diverged))} of it diverged, " if diverged else ""
    if set(found.seeds(*BOTH)) <= set(diverged):  # where full residuals finished, it has lost everything
        return True, f"control, no residuals: {named}where full residuals finished", left
    try:
        lost = mean_loss(case, found, CONTROL, "against")
    except Undecided as why:
        return False, f"control, no residuals: {named}{why}", (*why.verdict.results, *left)
    text = f"control: {named}without residuals the loss is {written(lost.mean, lost.bounds, lost.unit)}"
    records = (*found.records(CONTROL, "against"), *left)
    if gain > lost.mean > 0:
        return (
            False,
            f"{text}, less than what is gained: are both metrics in the same units, on the same data?",
            records,
        )
    if lost.bounds[0] > margin.value:
        return True, text, records
    return False, f"{text}, not seen to be above the margin: these records cannot tell", records


def better(case: Case) -> Verdict:
    """Judge whether the 95 % interval of the gain lies above zero and overlaps the published range."""
    try:
        loss, stated = mean_loss(case, case.only), _stated(case)
    except Undecided as why:
        gain = -why.verdict.value if why.verdict.value is not None else None
        return replace(why.verdict, value=gain, published=case.published())
    within = (-loss.bounds[1], -loss.bounds[0])
    status = below(loss.bounds, 0.0)
    reason, says = f"gain {written(-loss.mean, within, loss.unit)}", "95 % interval of the gain above 0"
    if stated is not None:
        span = f"{number(stated[0])} to {number(stated[1])}"
        says += f", and not all of it outside of {span}"
        reason += f", published {span}"
        if status == REPRODUCED and (within[1] < stated[0] or within[0] > stated[1]):
            status, reason = NOT_REPRODUCED, f"{reason}: better, but not by as much as published"
            reason = reason.replace("not by as much as", "by more than") if within[0] > stated[1] else reason
    return Verdict(
        status=status,
        reason=reason,
        value=-loss.mean,
        interval=within,
        published=case.published(),
        unit=loss.unit,
        tolerance=says,
        seeds=loss.estimate.n,
        seeds_needed=seeds_needed(_margin(case, loss).value, loss.spread),
        p_value=p_beyond(loss.estimate, 0.0),
        results=case.only.records(*BOTH),
    )


def _margin(case: Case, loss: Loss) -> Derived:
    """Return the margin of a loss, which is also the gain that is worth showing."""
    against = case.only.results["against"][case.only.seeds(*BOTH)[0]]
    return margin_of(case.book, case.limits, str(against.metric_name), loss.level)


def _stated(case: Case) -> Bounds | None:
    """Return the range of gains that the paper states for its own models."""
    low, high = case.published("low"), case.published("high")
    if low is not None and high is not None:
        return low, high
    value, tolerance = case.published(), case.limits.get("tolerance")
    return None if value is None or tolerance is None else (value - tolerance, value + tolerance)
