"""Claims about bytes: the share of residuals, savings, and the largest saving over several models.

Model states are arithmetic, so any number of ranks, steps and samples will do, and all must agree. Parameters,
gradients and optimizer states must match the plan (`analysis.claims.sound`), so that a saving comes only from
residuals and from streamed gradients. Values that no cell was meant to measure are filled in where they follow, and the
reason says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.analysis.claims.claim import Undecided, Verdict, allowed, beside, number, shown, unless_doubted
from benchmarks.analysis.claims.select import Case, Comparison, check_there, is_full
from benchmarks.analysis.claims.sound import load_planned, unplanned
from benchmarks.analysis.grouping import grouped
from benchmarks.core.record import STATE_FIELDS, CellResult

UNIT = "%"


@dataclass(frozen=True)
class States:
    """Bytes of one role, the records they come from, and which part was not measured."""

    total: int
    residuals: int
    records: tuple[CellResult, ...]
    assumed: str = ""


def share(case: Case) -> Verdict:
    """Judge the share of residuals in the model states: each model's must match the published one within tolerance."""
    known = {_label(case, one): states(case, one, "tested") for one in case.comparisons}
    shares = {label: 100 * one.residuals / one.total for label, one in known.items()}
    return _judge(case, shares, sum(shares.values()) / len(shares), known)


def saving(case: Case) -> Verdict:
    """Judge the saving of model states against the other role."""
    values, known = _savings(case)
    return _judge(case, values, next(iter(values.values())), known)


def maximum(case: Case) -> Verdict:
    """Judge the largest saving over several models: "up to" is a value that one reaches and none exceeds.

    A model reaches a value only if all its groups do.
    """
    values, known = _savings(case)
    pairs = ((one.model, _label(case, one)) for one in case.comparisons)
    by_model = grouped((model, (values[label], label)) for model, label in pairs).values()
    reached, most = max(map(min, by_model)), max(map(max, by_model))
    return _judge(case, {label: value for value, label in (reached, most)}, most[0], known)


def _savings(case: Case) -> tuple[dict[str, float], dict[str, States]]:
    """Return the saving of each model and group in per cent, and the states it comes from."""
    values, known = {}, {}
    for one in case.comparisons:
        tested, against = (states(case, one, role) for role in ("tested", "against"))
        values[_label(case, one)] = 100 * (1 - tested.total / against.total)
        assumed = "; ".join(dict.fromkeys(text for text in (tested.assumed, against.assumed) if text))
        known[_label(case, one)] = replace(tested, records=(*tested.records, *against.records), assumed=assumed)
    return values, known


def _label(case: Case, one: Comparison) -> str:
    """Return the model, with the group if it has several."""
    alone = [other.model for other in case.comparisons].count(one.model) == 1
    return one.model if alone else f"{one.model} ({one.group})"


def states(case: Case, comparison: Comparison, role: str) -> States:
    """Return the bytes of a role: measured, with kept gradients added to a streamed stand-in, or from the plan.

    A cell that failed, is broken or was not run yet is not replaced: that raises Undecided, with the reason.
    """
    criteria, planned = case.scope.roles[role], load_planned().get(comparison.model)
    if role == "against" and role not in comparison.results and planned and is_full(criteria):
        residuals = planned.residuals_bytes["baseline"]
        return States(planned.total_bytes, residuals, (), f"full residuals by arithmetic, {residuals:,} bytes")
    check_there(comparison, role)
    measured = _equal(tuple(comparison.results[role].values()), exact=role == "against")
    first = measured.records[0]
    if first.cell.gradients == criteria.get("gradients", "kept"):
        return measured
    text = "kept gradients by arithmetic, as large as the parameters"
    return replace(measured, total=measured.total + int(first.parameters_bytes or 0), assumed=text)


def _equal(records: tuple[CellResult, ...], exact: bool) -> States:
    """Return the states that all seeds share, checked against the plan; if `exact`, residuals may not exceed it.

    Bytes are arithmetic, so a seed that differs means that something is wrong: Undecided is raised.
    """
    for name in (*STATE_FIELDS, "total_bytes"):
        values = sorted({int(getattr(record, name) or 0) for record in records})
        if len(values) > 1:
            text = f"{name} differs between seeds: {values[0]:,} and {values[-1]:,}; model states do not depend on them"
            raise Undecided(text, results=records)
    if problem := unplanned(records[0].cell, vars(records[0]), exact=exact):
        raise Undecided(problem, results=records)
    return States(int(records[0].total_bytes or 0), int(records[0].residuals_bytes or 0), records)


def _judge(case: Case, values: Mapping[str, float], value: float, known: Mapping[str, States]) -> Verdict:
    """Compare values in per cent with the published one or with the limits of the claim.

    Residuals larger than planned do not show it: they make a larger saving the published one.
    """
    published = case.published()
    low, high, says = allowed(published, case.limits)
    text = ", ".join(f"{model} {number(one)} %" for model, one in values.items())
    text += f", {says}" if published is None else f"; {beside(value, published, '%')}"
    assumed = "; ".join(dict.fromkeys(state.assumed for state in known.values() if state.assumed))
    records = tuple(record for state in known.values() for record in state.records)
    verdict = Verdict(
        status=shown(all(low <= one <= high for one in values.values())),
        reason=text + (f" ({assumed})" if assumed else ""),
        value=value,
        unit=UNIT,
        tolerance=says,
        seeds=min(len({one.cell.seed for one in state.records}) for state in known.values()),
        results=records,
    )
    return unless_doubted(verdict, (unplanned(one.cell, vars(one), exact=True) for one in records))
