"""Is a metric kept? Not worse by more than a margin, with confidence, and on a task that can tell.

Non-inferiority, paired by seed: reproduced if the whole 95 % interval of the loss lies below the margin, not reproduced
if it lies wholly above, else inconclusive. Where training without residuals does not lose more than the margin, which
its whole interval must show, the same test would pass anything: inconclusive.
"""

from dataclasses import replace

from benchmarks.claims.case import Case
from benchmarks.claims.margins import Derived, loss_between, margin_of
from benchmarks.claims.paired import BOTH, mean_loss
from benchmarks.claims.power import seeds_needed
from benchmarks.claims.select import Comparison
from benchmarks.claims.verdict import INCONCLUSIVE, REPRODUCED, Verdict, below, number, written
from benchmarks.record import CellResult
from benchmarks.report.student import p_beyond

CONTROL = "control"


def not_worse(case: Case) -> Verdict:
    """Judge whether tested keeps the metric of against; control is training without residuals."""
    found = case.only
    loss = mean_loss(case, found)
    if isinstance(loss, Verdict):
        return replace(loss, published=published_loss(case))
    name = str(found.results["against"][found.seeds(*BOTH)[0]].metric_name)
    if case.limits.get("margin") is None and name not in case.book.margins:
        reason = f"metric_name: {name!r} has no margin; claims.yaml has those of {', '.join(case.book.margins)}"
        return Verdict(status=INCONCLUSIVE, reason=reason, results=found.records(*BOTH))
    margin = margin_of(case.book, case.limits, name, loss.level)
    status, records = below(loss.bounds, margin.value), found.records(*BOTH)
    reason = f"loss {written(loss.mean, loss.bounds, loss.unit)}, margin {number(margin.value)}"
    if status == REPRODUCED:
        tells, text, more = _control(case, found, margin)
        status, reason = (REPRODUCED if tells else INCONCLUSIVE), f"{reason}; {text}"
        records += more
    return Verdict(
        status=status,
        reason=reason,
        value=loss.mean,
        interval=loss.bounds,
        published=published_loss(case),
        unit=loss.unit,
        tolerance=_says(margin, loss.unit),
        seeds=loss.estimate.n,
        seeds_needed=seeds_needed(margin.value, loss.spread),
        p_value=p_beyond(loss.estimate, margin.value),
        results=records,
    )


def _says(margin: Derived, unit: str) -> str:
    return (
        f"95 % interval of the loss below {number(margin.value)} {unit} = {margin.reason}; without residuals above it"
    )


def published_loss(case: Case) -> float | None:
    """Return the loss that follows from what the paper states of the two sides, in the unit that is judged."""
    if (value := case.published()) is not None:
        return value
    stated = case.claim.published
    if not case.is_paper or not set(BOTH) <= set(stated):
        return None
    return round(loss_between(stated["against"], stated["tested"], bool(case.limits.get("relative")))[0], 4)


def _control(case: Case, found: Comparison, margin: Derived) -> tuple[bool, str, tuple[CellResult, ...]]:
    """Whether the records can tell, why, and the control's: it goes through the same checks as what is tested."""
    if not found.results.get(CONTROL) and not found.holes.get(CONTROL):
        return False, f"the control, no residuals, is missing: {case.scope.command}", ()
    lost = mean_loss(case, found, CONTROL, "against")
    if isinstance(lost, Verdict):
        # One that diverged where full residuals finished has lost all.
        return lost.status not in (INCONCLUSIVE, "not run"), f"control, no residuals: {lost.reason}", lost.results
    text = f"control: without residuals the loss is {written(lost.mean, lost.bounds, lost.unit)}"
    records = found.records(CONTROL, "against")
    if lost.bounds[0] > margin.value:
        return True, text, records
    return False, f"{text}, not seen to be above the margin: these records cannot tell", records
