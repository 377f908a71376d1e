"""Claims about accuracy, paired by seed: kept (not worse by more than a margin), better, and equal in every digit.

Loss and gain are in points of the metric (or in per cent of the other side's), positive for worse and for better
whichever way the metric counts. Intervals are Student's t over the seeds that both sides have.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.claims.case import Case, lacking
from benchmarks.claims.select import Comparison
from benchmarks.claims.verdict import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    Verdict,
    below,
    bounds,
    number,
    written,
)
from benchmarks.record import CellResult
from benchmarks.report.student import interval
from benchmarks.report.tell import load_tells

BOTH = ("tested", "against")


def not_worse(case: Case) -> Verdict:
    """Judge whether a metric is kept: the whole interval of the loss within the margin, on a task that can tell."""
    found = case.only
    if diverged := _diverged(found):
        return diverged
    measured = _losses(case, found)
    if isinstance(measured, Verdict):
        return measured
    values, unit, level = measured
    margin = _margin(case, found, level)
    mean = interval(list(values.values()))
    assert mean is not None
    within = bounds(mean)
    assert within is not None
    status, reason = below(within, margin), f"loss {written(mean.mean, within, unit)}, margin {number(margin)}"
    if status == REPRODUCED and (why := _control(case, found)):
        status, reason = (INCONCLUSIVE if why[0] else REPRODUCED), f"{reason}; {why[1]}"
    return Verdict(
        status=status,
        reason=_with_missing(reason, found),
        value=mean.mean,
        interval=within,
        published=published_loss(case),
        unit=unit,
        tolerance=f"95 % interval of the loss below {number(margin)} {unit}; control: no residuals are worse",
        seeds=mean.n,
        results=found.records(*BOTH),
    )


def better(case: Case) -> Verdict:
    """Judge whether tested is better than against: the interval of the gain above zero, and in the range if stated."""
    found = case.only
    measured = _losses(case, found)
    if isinstance(measured, Verdict):
        return measured
    values, unit, _ = measured
    mean = interval([-value for value in values.values()])
    assert mean is not None
    within = bounds(mean)
    assert within is not None
    status = below((-within[1], -within[0]), 0.0)
    reason, says = f"gain {written(mean.mean, within, unit)}", "95 % interval of the gain above 0"
    if (stated := _stated(case)) is not None:
        says += f", and not all of it outside of {number(stated[0])} to {number(stated[1])}"
        if status == REPRODUCED and (within[1] < stated[0] or within[0] > stated[1]):
            status = NOT_REPRODUCED
            reason += f": better, but published are {number(stated[0])} to {number(stated[1])}"
    return Verdict(
        status=status,
        reason=_with_missing(reason, found),
        value=mean.mean,
        interval=within,
        published=case.published(),
        unit=unit,
        tolerance=says,
        seeds=mean.n,
        results=found.records(*BOTH),
    )


def identical(case: Case) -> Verdict:
    """Judge whether metrics and their histories are equal in every digit; one seed is enough, all must be."""
    found = case.only
    if missing := lacking(found, *BOTH):
        return missing
    seeds = found.seeds(*BOTH)
    if not seeds:
        return _no_common_seed(found)
    pairs = {seed: tuple(found.results[role][seed] for role in BOTH) for seed in seeds}
    differ = [seed for seed, (one, other) in pairs.items() if _digits(one) != _digits(other)]
    largest = max(abs(float(one.metric or 0) - float(other.metric or 0)) for one, other in pairs.values())
    points = len(pairs[seeds[0]][0].metric_history)
    if differ:
        reason = f"seed {differ[0]}: {_first_difference(*pairs[differ[0]])}"
    else:
        reason = f"equal in every digit at {points} evaluations, {_count(len(seeds), 'seed')}"
    return Verdict(
        status=NOT_REPRODUCED if differ else REPRODUCED,
        reason=_with_missing(reason, found),
        value=largest,
        unit=_unit(pairs[seeds[0]][0]),
        tolerance="equal in every digit",
        seeds=len(seeds),
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


def losses(found: Comparison, tested: str, against: str, relative: bool) -> dict[int, float]:
    """Return by how much tested is worse, by seed; higher is worse."""
    values = {}
    for seed in found.seeds(tested, against):
        one, other = found.results[tested][seed], found.results[against][seed]
        loss = float(other.metric or 0) - float(one.metric or 0)
        loss = loss if other.higher_is_better else -loss
        values[seed] = 100 * loss / float(other.metric or 1) if relative else loss
    return values


def _losses(case: Case, found: Comparison) -> tuple[dict[int, float], str, float] | Verdict:
    """Losses by seed, their unit and the mean of the metric compared with; or why there is nothing to judge."""
    if missing := lacking(found, *BOTH):
        return missing
    relative = bool(case.limits.get("relative"))
    values = losses(found, *BOTH, relative)
    if not values:
        return _no_common_seed(found)
    others = [found.results["against"][seed] for seed in values]
    unit = "%" if relative else _unit(others[0])
    if len(values) < 2:
        seed, value = next(iter(values.items()))
        text = (
            f"n = 1: one seed ({seed}) has no interval; its difference is {number(-value)} {unit}, positive is better"
        )
        records = found.records(*BOTH)
        # The published value stays: it says what there is to be tested with more seeds.
        return Verdict(
            status=INCONCLUSIVE,
            reason=_with_missing(text, found),
            value=value if case.claim.kind == "not_worse" else -value,
            published=published_loss(case) if case.claim.kind == "not_worse" else case.published(),
            unit=unit,
            seeds=1,
            results=records,
        )
    return values, unit, sum(float(one.metric or 0) for one in others) / len(others)


def _margin(case: Case, found: Comparison, level: float) -> float:
    """The margin in the unit of the loss: a published number, or the usual one of the metric."""
    given = case.limits.get("margin")
    if given is not None:
        return float(case.book.published[given].value if isinstance(given, str) else given)
    name = str(next(iter(found.results["against"].values())).metric_name)
    usual = case.book.margins[name]
    if usual.points is not None:
        return 100 * usual.points / level if case.limits.get("relative") else usual.points
    return float(usual.percent or 0) * (1 if case.limits.get("relative") else level / 100)


def _control(case: Case, found: Comparison) -> tuple[bool, str]:
    """Whether the claim says nothing here, and why; else by what the task is known to tell schemes apart."""
    values = losses(found, "control", "against", False)
    if len(values) >= 2:
        mean = interval(list(values.values()))
        assert mean is not None
        within = bounds(mean)
        assert within is not None
        lost = written(mean.mean, within, _unit(next(iter(found.results["against"].values()))))
        if within[0] > 0:
            return False, f"control: without residuals the loss is {lost}"
        return True, f"control: without residuals it is not seen to be worse (loss {lost}), so that it says nothing"
    criteria = case.scope.roles["control"]
    usual = criteria.get("compressor", "topk") == "topk" and criteria.get("density", 0.01) == 0.01
    tells = load_tells().get(found.model) if not case.is_paper and usual else None
    if tells is not None:
        text = "without residuals it is worse" if tells else "without residuals it is as good, so that it says nothing"
        return not tells, f"control, results/reference/tell.json: {text}"
    why = "has one seed in common" if values else "is missing"
    return True, f"the control (no residuals) {why}: {case.scope.command}"


def _diverged(found: Comparison) -> Verdict | None:
    """A diverged cell of the scheme that is tested, beside a finished one that it is compared with."""
    for seed, hole in sorted(found.holes.get("tested", {}).items()):
        if hole.status == "diverged" and seed in found.results.get("against", {}):
            record = found.results["against"][seed]
            reason = f"seed {seed} of {hole.name} diverged ({hole.reason}), that of {record.cell.name} finished"
            return Verdict(status=NOT_REPRODUCED, reason=reason, seeds=len(found.seeds(*BOTH)), results=(record,))
    return None


def _stated(case: Case) -> tuple[float, float] | None:
    """The range of gains that the paper states, of its own models."""
    low, high = case.published("low"), case.published("high")
    if low is not None and high is not None:
        return low, high
    value, tolerance = case.published(), case.limits.get("tolerance")
    return None if value is None or tolerance is None else (value - tolerance, value + tolerance)


def _no_common_seed(found: Comparison) -> Verdict:
    text = _with_missing("no seed in common", found)
    return Verdict(status=INCONCLUSIVE if text != "no seed in common" else NOT_RUN, reason=text)


def _with_missing(reason: str, found: Comparison) -> str:
    missing = found.missing(*BOTH)
    return f"{reason}; {missing}" if missing else reason


def _unit(record: CellResult) -> str:
    return "ppl" if record.metric_name == "perplexity" else "points"


def _digits(record: CellResult) -> Mapping[str, Any]:
    """All that must be equal. Lists and tuples of JSON alike."""
    history = [list(pair) for pair in record.metric_history]
    return {"metric": record.metric, "metrics": record.metrics, "metric_history": history}


def _first_difference(one: CellResult, other: CellResult) -> str:
    mine, others = _digits(one), _digits(other)
    name = next(name for name in mine if mine[name] != others[name])
    if name == "metric_history":
        pair = next((p for p in zip(mine[name], others[name], strict=False) if p[0] != p[1]), None)
        return f"metric_history differs: {pair[0]} and {pair[1]}" if pair else "metric_history differs in length"
    return f"{name} differs: {mine[name]} and {others[name]}"


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
