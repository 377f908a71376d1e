"""Claims about bytes: the share of residuals, savings, and the largest saving over several models.

Model states are arithmetic, so any number of ranks, steps and samples will do, and all must agree. Parameters,
gradients and optimizer states must match the plan (`analysis.claims.sound`), so that a saving comes only from
residuals and from streamed gradients. Values that no cell was meant to measure are filled in where they follow, and the
reason says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.analysis.claims.claim import Criteria, Undecided, Verdict, number, shown, unless_doubted
from benchmarks.analysis.claims.select import Case, Comparison, check_there
from benchmarks.analysis.claims.sound import load_planned, unplanned
from benchmarks.analysis.grouping import grouped
from benchmarks.core.record import STATE_FIELDS, CellResult

UNIT = "%"
STREAMED = ", streamed"
"""Suffix of roles whose cells stand in for those with kept gradients."""


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


def with_streamed(roles: Mapping[str, Criteria]) -> dict[str, Criteria]:
    """Return the roles, and for each with kept gradients a copy with streamed ones that can stand in for it.

    Kept never stands in for streamed: that a streamed cell holds no gradients is the claim under test.
    """
    kept = {role: criteria for role, criteria in roles.items() if criteria.get("gradients", "kept") == "kept"}
    return {**roles, **{role + STREAMED: {**one, "gradients": "streamed"} for role, one in kept.items()}}


def enough_bytes(roles: Mapping[str, Criteria], there: set[str]) -> bool:
    """Return whether a group has each role, or one that it can be computed from."""
    own = [role for role in roles if not role.endswith(STREAMED)]
    return all({role, role + STREAMED} & there or (role == "against" and _is_full(roles[role])) for role in own)


def _is_full(criteria: Criteria) -> bool:
    """Return whether a role is the baseline in float32, whose states are those of the plan."""
    return {name: value for name, value in criteria.items() if name != "world_size"} == {"scheme": "baseline"}


def states(case: Case, comparison: Comparison, role: str) -> States:
    """Return the bytes of a role: measured, or, if it has no cell, from a streamed cell or the plan.

    A cell that failed, is broken or was not run yet is not replaced: that raises Undecided, with the reason.
    """
    if comparison.holes.get(role):
        check_there(comparison, role)
    if records := comparison.results.get(role):
        return _equal(tuple(records.values()), exact=role == "against")
    if records := comparison.results.get(role + STREAMED):
        streamed = _equal(tuple(records.values()), exact=role == "against")
        total = streamed.total + int(streamed.records[0].parameters_bytes or 0)
        text = "kept gradients by arithmetic, as large as the parameters"
        return States(total, streamed.residuals, streamed.records, text)
    planned = load_planned().get(comparison.model)
    if role == "tested" or planned is None or not _is_full(case.scope.roles[role]):
        check_there(comparison, role)
    assert planned is not None
    residuals = planned.residuals_bytes["baseline"]
    return States(planned.total_bytes, residuals, (), f"full residuals by arithmetic, {residuals:,} bytes")


def _equal(records: tuple[CellResult, ...], exact: bool) -> States:
    """Return the states that all seeds share, checked against the plan; if `exact`, residuals may not exceed it.

    Bytes are arithmetic, so a seed that differs means that something is wrong: Undecided is raised.
    """
    for name in (*STATE_FIELDS, "total_bytes"):
        values = sorted({int(getattr(record, name) or 0) for record in records})
        if len(values) > 1:
            text = f"{name} differs between seeds: {values[0]:,} and {values[-1]:,}; model states do not depend on them"
            raise Undecided(text, unit=UNIT, results=records)
    if problem := unplanned(records[0], exact=exact):
        raise Undecided(problem, unit=UNIT, results=records)
    return States(int(records[0].total_bytes or 0), int(records[0].residuals_bytes or 0), records)


def _judge(case: Case, values: Mapping[str, float], value: float, known: Mapping[str, States]) -> Verdict:
    """Compare values in per cent with the published one or with the limits of the claim.

    Residuals larger than planned do not show it: they make a larger saving the published one.
    """
    published, limits = case.published(), case.limits
    if published is not None and "tolerance" in limits:
        low, high = published - limits["tolerance"], published + limits["tolerance"]
        says = f"{published:g} % within {limits['tolerance']:g} points"
    else:
        ends = {"at least": limits.get("at_least"), "at most": limits.get("at_most")}
        low, high = ends.values()
        says = " and ".join(f"{word} {end:g} %" for word, end in ends.items() if end is not None)
    outside = [m for m, v in values.items() if (low is not None and v < low) or (high is not None and v > high)]
    text = ", ".join(f"{model} {number(one)} %" for model, one in values.items())
    apart = round(value - (published or 0), 2)
    more = f"{abs(apart):.2f} points {'more' if apart >= 0 else 'less'}"
    text += f", {says}" if published is None else f"; published {published:g} %, {more}"
    assumed = "; ".join(dict.fromkeys(state.assumed for state in known.values() if state.assumed))
    records = tuple(record for state in known.values() for record in state.records)
    verdict = Verdict(
        status=shown(not outside),
        reason=text + (f" ({assumed})" if assumed else ""),
        value=value,
        published=published,
        unit=UNIT,
        tolerance=says,
        seeds=min(len({one.cell.seed for one in state.records}) for state in known.values()),
        results=records,
    )
    return unless_doubted(verdict, (unplanned(one, exact=True) for one in records))
