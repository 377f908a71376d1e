"""Is one scheme better than another? Paired by seed, whichever way the metric counts."""

from dataclasses import replace

from benchmarks.claims.case import Case
from benchmarks.claims.margins import margin_of
from benchmarks.claims.paired import BOTH, Loss, mean_loss
from benchmarks.claims.power import seeds_needed
from benchmarks.claims.verdict import NOT_REPRODUCED, REPRODUCED, Bounds, Verdict, below, number, written
from benchmarks.report.student import p_beyond


def better(case: Case) -> Verdict:
    """Judge whether the 95 % interval of the gain lies above zero, and not all of it outside of what is published."""
    loss, stated = mean_loss(case, case.only), _stated(case)
    if isinstance(loss, Verdict):
        gain = -loss.value if loss.value is not None else None
        return replace(loss, value=gain, published=case.published())
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
        seeds_needed=seeds_needed(_gain_of_note(case, loss), loss.spread),
        p_value=p_beyond(loss.estimate, 0.0),
        results=case.only.records(*BOTH),
    )


def _gain_of_note(case: Case, loss: Loss) -> float:
    """A gain as large as the margin of a loss: 0 for a metric that has none."""
    found = case.only
    name = str(found.results["against"][found.seeds(*BOTH)[0]].metric_name)
    return margin_of(case.book, case.limits, name, loss.level).value if name in case.book.margins else 0.0


def _stated(case: Case) -> Bounds | None:
    """The range of gains that the paper states, of its own models."""
    low, high = case.published("low"), case.published("high")
    if low is not None and high is not None:
        return low, high
    value, tolerance = case.published(), case.limits.get("tolerance")
    return None if value is None or tolerance is None else (value - tolerance, value + tolerance)
