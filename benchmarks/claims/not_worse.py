"""Is a metric kept? Not worse by more than a margin, with confidence, and on a task that can tell.

Non-inferiority, paired by seed: reproduced if the whole 95 % interval of the loss lies below the margin, not reproduced
if it lies wholly above, else inconclusive. Where training without residuals is as good, the test says nothing.
"""

from dataclasses import replace

from benchmarks.claims.case import Case
from benchmarks.claims.paired import BOTH, losses, mean_loss, unit_of, with_missing
from benchmarks.claims.select import Comparison
from benchmarks.claims.verdict import INCONCLUSIVE, REPRODUCED, Verdict, below, bounds, number, written
from benchmarks.report.student import interval
from benchmarks.report.tell import load_tells


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
    margin = _margin(case, loss.level, name)
    status = below(loss.interval, margin)
    reason = f"loss {written(loss.mean, loss.interval, loss.unit)}, margin {number(margin)}"
    if status == REPRODUCED:
        tells, text = _control(case, found)
        status, reason = (REPRODUCED if tells else INCONCLUSIVE), f"{reason}; {text}"
    return Verdict(
        status=status,
        reason=with_missing(reason, found),
        value=loss.mean,
        interval=loss.interval,
        published=published_loss(case),
        unit=loss.unit,
        tolerance=f"95 % interval of the loss below {number(margin)} {loss.unit}; control: no residuals are worse",
        seeds=loss.seeds,
        results=found.records(*BOTH),
    )


def published_loss(case: Case) -> float | None:
    """Return the loss that follows from what the paper states of the two sides, in the unit that is judged."""
    if (value := case.published()) is not None:
        return value
    tested, against = case.published("tested"), case.published("against")
    if tested is None or against is None:
        return None
    loss = tested - against if case.claim.published["tested"].unit == "ppl" else against - tested
    return round(100 * loss / against if case.limits.get("relative") else loss, 4)


def _margin(case: Case, level: float, name: str) -> float:
    """The margin in the unit of the loss: a published number, or the usual one of the metric."""
    given = case.limits.get("margin")
    if given is not None:
        return float(case.book.published[given].value if isinstance(given, str) else given)
    usual = case.book.margins[name]
    if usual.points is not None:
        return 100 * usual.points / level if case.limits.get("relative") else usual.points
    return float(usual.percent or 0) * (1 if case.limits.get("relative") else level / 100)


def _control(case: Case, found: Comparison) -> tuple[bool, str]:
    """Whether the task is seen to need residuals, and from what."""
    values = losses(found, "control", "against", relative=False)
    mean = interval(list(values.values()))
    within = bounds(mean) if mean else None
    if mean and within:
        lost = written(mean.mean, within, unit_of(found.results["against"][next(iter(values))]))
        if within[0] > 0:
            return True, f"control: without residuals the loss is {lost}"
        return False, f"control: without residuals it is not seen to be worse, loss {lost}, so this says nothing"
    criteria = case.scope.roles["control"]
    usual = (criteria.get("compressor", "topk"), criteria.get("density", 0.01)) == ("topk", 0.01)
    tells = load_tells().get(found.model) if not case.is_paper and usual else None
    if tells is not None:
        text = "it is worse without residuals" if tells else "it is as good without residuals, so this says nothing"
        return tells, f"control, from results/reference/tell.json: {text}"
    return False, f"the control, no residuals, {'has one seed' if values else 'is missing'}: {case.scope.command}"
