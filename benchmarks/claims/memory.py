"""Claims about bytes: the share of residuals, savings, and the largest saving over several models.

Model states are arithmetic, so any number of ranks, steps and samples will do. Of a model at full size what no cell
holds is filled in where it follows: a kept gradient is as large as the parameters, and full residuals are those of
`counts` in claims.yaml, which a test recomputes. The reason then says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.claims.case import Case, lacking
from benchmarks.claims.select import FREE, Comparison, select
from benchmarks.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Verdict, number
from benchmarks.record import BYTE_FIELDS, STATE_FIELDS, CellResult

UNIT = "%"
BASELINE = {"scheme": "baseline"}
"""The role that follows by arithmetic: full residuals, kept gradients."""


@dataclass(frozen=True)
class States:
    """Bytes of one role, the records they come from, and what of them was not measured."""

    total: int
    residuals: int
    records: tuple[CellResult, ...]
    assumed: str = ""


def share(case: Case) -> Verdict:
    """Judge the share of residuals in the model states: each model's must be as published, within the tolerance."""
    found = {one.model: states(case, one, "tested") for one in case.comparisons}
    if failed := _first_verdict(found):
        return failed
    known = {model: one for model, one in found.items() if isinstance(one, States)}
    shares = {model: 100 * one.residuals / one.total for model, one in known.items()}
    return _judge(case, shares, sum(shares.values()) / len(shares), known)


def saving(case: Case) -> Verdict:
    """Judge the saving of model states against the other role."""
    found = savings(case)
    return found if isinstance(found, Verdict) else _judge(case, found[0], next(iter(found[0].values())), found[1])


def maximum(case: Case) -> Verdict:
    """Judge the largest saving over several models: "up to" is the value that one reaches and none exceeds."""
    found = savings(case)
    if isinstance(found, Verdict):
        return found
    most = max(found[0], key=lambda model: found[0][model])
    return _judge(case, {most: found[0][most]}, found[0][most], found[1])


def savings(case: Case) -> tuple[dict[str, float], dict[str, States]] | Verdict:
    """Return the saving of each model in per cent, and what it comes from; or why there is none."""
    values, known = {}, {}
    for one in case.comparisons:
        both = {role: states(case, one, role) for role in ("tested", "against")}
        if failed := _first_verdict(both):
            return failed
        tested, against = (state for state in both.values() if isinstance(state, States))
        values[one.model] = 100 * (1 - tested.total / against.total)
        texts = dict.fromkeys(text for text in (tested.assumed, against.assumed) if text)
        records = (*tested.records, *against.records)
        known[one.model] = States(tested.total, tested.residuals, records, "; ".join(texts))
    return values, known


def states(case: Case, comparison: Comparison, role: str) -> States | Verdict:
    """Return the bytes of a role: measured, else those of a streamed cell and kept gradients by arithmetic, else all.

    Never the other way round: that a streamed cell holds no gradients is what its claims say.
    """
    if records := comparison.results.get(role):
        return _equal(tuple(records.values()))
    criteria = case.scope.roles[role]
    kept = criteria.get("gradients", "kept") == "kept"
    other = _found(case, comparison.model, {**criteria, "gradients": "streamed"}) if kept else None
    if isinstance(other, States):
        record = other.records[0]
        total = other.total - int(record.gradients_bytes or 0) + int(record.parameters_bytes or 0)
        return States(total, other.residuals, other.records, "kept gradients by arithmetic, as large as the parameters")
    missing = lacking(comparison, role)
    assert missing is not None
    return (_by_arithmetic(case, comparison) if role == "against" and dict(criteria) == BASELINE else None) or missing


def _by_arithmetic(case: Case, comparison: Comparison) -> States | None:
    """The baseline's states, where parameters and optimizer states of the model were measured and are as counted."""
    counts = case.book.counts.get(comparison.model)
    for gradients in ("kept", "streamed"):
        found = _found(case, comparison.model, {**case.scope.roles["tested"], "gradients": gradients})
        if counts and isinstance(found, States) and found.records[0].parameters_bytes == 4 * counts.parameters:
            dense = 8 * counts.parameters + int(found.records[0].optimizer_states_bytes or 0)
            text = f"full residuals by arithmetic, 4 x {counts.residuals:,} bytes"
            return States(dense + 4 * counts.residuals, 4 * counts.residuals, found.records, text)
    return None


def _found(case: Case, model: str, criteria: Mapping[str, Any]) -> States | Verdict | None:
    found = select(case.evidence, model, {"tested": criteria}, FREE["memory"])
    records = found.results.get("tested")
    return _equal(tuple(records.values())) if records else None


def _equal(records: tuple[CellResult, ...]) -> States | Verdict:
    """The states that all seeds share; bytes are arithmetic, so a seed that differs means that something is wrong."""
    for name in (*STATE_FIELDS, "total_bytes"):
        values = sorted({int(getattr(record, name) or 0) for record in records})
        if len(values) > 1:
            text = f"{name} differs between seeds: {values[0]:,} and {values[-1]:,}; model states do not depend on them"
            return Verdict(status=INCONCLUSIVE, reason=text, unit=UNIT, results=records)
    assert all(getattr(records[0], name) is not None for name in BYTE_FIELDS)
    return States(int(records[0].total_bytes or 0), int(records[0].residuals_bytes or 0), records)


def _first_verdict(found: Mapping[str, States | Verdict]) -> Verdict | None:
    return next((one for one in found.values() if isinstance(one, Verdict)), None)


def _judge(case: Case, values: Mapping[str, float], value: float, known: Mapping[str, States]) -> Verdict:
    """Compare values in per cent with what is published or with the limits of the claim."""
    published, limits = case.published(), case.limits
    low, high = None, None
    if published is not None and "tolerance" in limits:
        low, high = published - limits["tolerance"], published + limits["tolerance"]
        high = None if case.claim.kind == "saving" else high
        says = f"{'' if high else 'at least '}{published:g} % ± {limits['tolerance']:g} points"
    else:
        low, high = limits.get("at_least"), limits.get("at_most")
        says = _range_text(low, high)
    outside = [m for m, v in values.items() if (low is not None and v < low) or (high is not None and v > high)]
    text = ", ".join(f"{model} {number(one)} %" for model, one in values.items())
    text += f", {says}" if published is None else f"; published {published:g} %, {_against(value, published)}"
    assumed = "; ".join(dict.fromkeys(state.assumed for state in known.values() if state.assumed))
    records = tuple(record for state in known.values() for record in state.records)
    return Verdict(
        status=NOT_REPRODUCED if outside else REPRODUCED,
        reason=text + (f" ({assumed})" if assumed else ""),
        value=value,
        published=published,
        unit=UNIT,
        tolerance=says,
        seeds=min(len({record.cell.seed for record in state.records}) for state in known.values()),
        results=records,
    )


def _range_text(low: float | None, high: float | None) -> str:
    texts = [f"at least {low:g} %"] if low is not None else []
    return " and ".join([*texts, *([f"at most {high:g} %"] if high is not None else [])])


def _against(value: float, published: float) -> str:
    difference = round(value - published, 2)
    return f"{abs(difference):.2f} points {'more' if difference >= 0 else 'less'}"
