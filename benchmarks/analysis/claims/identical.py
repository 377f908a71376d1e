"""Test whether two ways of training give the same metrics, in every digit and at every evaluation."""

from typing import Any

from benchmarks.analysis.claims.paired import BOTH, unit_of, without_spread
from benchmarks.analysis.claims.select import Case, common_seeds
from benchmarks.analysis.claims.verdict import Undecided, Verdict, shown
from benchmarks.core.record import CellResult


def identical(case: Case) -> Verdict:
    """Judge every seed that both sides have; one is enough, and all must be equal."""
    found = case.only
    seeds = common_seeds(found, *BOTH)
    pairs = {seed: (found.results["tested"][seed], found.results["against"][seed]) for seed in seeds}
    differ = {seed: difference for seed, pair in pairs.items() if (difference := _difference(*pair))}
    points = min(len(one.metric_history) for one, _ in pairs.values())
    reason = f"equal in every digit at {points} evaluations, {len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    if differ:
        seed = next(iter(differ))
        reason = f"{len(differ)} of {len(pairs)} seeds differ; seed {seed}: {differ[seed]}"
    if odd := without_spread(found, BOTH):
        raise Undecided(odd, seeds=len(pairs), results=found.records(*BOTH))
    return Verdict(
        status=shown(not differ),
        reason=reason,
        value=max(abs(float(one.metric or 0) - float(other.metric or 0)) for one, other in pairs.values()),
        unit=unit_of(next(iter(pairs.values()))[0]),
        tolerance="equal in every digit",
        seeds=len(pairs),
        results=found.records(*BOTH),
    )


def _difference(one: CellResult, other: CellResult) -> str | None:
    """Return the first difference; None for equal records."""
    mine, others = _digits(one), _digits(other)
    name = next((name for name in mine if mine[name] != others[name]), None)
    if name != "metric_history":
        return name and f"{name} differs: {mine[name]} and {others[name]}"
    pairs = zip(mine[name], others[name], strict=False)
    first = next((pair for pair in pairs if pair[0] != pair[1]), None)
    return f"metric_history differs: {first[0]} and {first[1]}" if first else "metric_history differs in length"


def _digits(record: CellResult) -> dict[str, Any]:
    """Return all values that must be equal."""
    history = [list(pair) for pair in record.metric_history]
    return {"metric": record.metric, "metrics": record.metrics, "metric_history": history}
