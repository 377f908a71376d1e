"""The verdict of one scope of a claim: every group of cells must show it, and nothing odd be about their records."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.analysis.claims.claim import Book, Claim, Scope
from benchmarks.analysis.claims.evidence import Evidence
from benchmarks.analysis.claims.kinds import KINDS
from benchmarks.analysis.claims.memory_claims import STREAMED
from benchmarks.analysis.claims.planned import mislabelled
from benchmarks.analysis.claims.select import FREE, Case, Comparison, lesser, on_cpu, select
from benchmarks.analysis.claims.verdict import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    Undecided,
    Verdict,
    worst,
)
from benchmarks.analysis.grouping import grouped
from benchmarks.core.record import CellResult


def judge(book: Book, claim: Claim, scope: Scope, evidence: Evidence, *, is_paper: bool) -> Verdict:
    """Return what the evidence shows of a claim in one scope."""
    if not scope.models:
        return Verdict(status=NOT_RUN, reason="not tested on the paper's models")
    kind = KINDS[claim.kind]
    free, roles, on_gpus = FREE[kind.measured], kind.more_roles(scope.roles), is_paper and scope.on_gpus
    comparisons = [
        one
        for model in scope.models
        for one in select(evidence, model, roles, free, enough=kind.enough, on_gpus=on_gpus)
    ]
    cases = [tuple(comparisons)] if kind.together else [(one,) for one in comparisons]
    verdicts = []
    for those in cases:
        case = Case(book=book, claim=claim, scope=scope, comparisons=those, is_paper=is_paper)
        missing = [one.missing(*_needed(scope, one)) for one in those]
        try:
            verdict = kind.judge(case)
        except Undecided as why:
            verdict = why.verdict
        verdicts.append(doubted(kind.bears, evidence, [text for text in missing if text], verdict))
    verdict = combined(verdicts, [those[0].group for those in cases])
    less = [text for model in scope.models if (text := lesser(evidence, model, roles, free))]
    if verdict.status != NOT_RUN or not less:
        return verdict
    return replace(verdict, status=INCONCLUSIVE, reason="; ".join(less))


def _needed(scope: Scope, one: Comparison) -> list[str]:
    """The roles of a comparison that count: the claim's own, and of others those that stand in for one without cells.

    A control that diverged has shown what it is for.
    """
    own = [role for role in one.holes if role in scope.roles or role.removesuffix(STREAMED) not in one.results]
    return [
        role for role in own if role != "control" or {hole.status for hole in one.holes[role].values()} != {"diverged"}
    ]


def combined(verdicts: Sequence[Verdict], groups: Sequence[str]) -> Verdict:
    """Return the verdict of all groups: the first of the worst, which is no better for what others show.

    What was not run in one group and was in another leaves the claim open.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    status = worst_one = worst(one.status for one in verdicts)
    if status == NOT_RUN and any(one.status != NOT_RUN for one in verdicts):
        status = INCONCLUSIVE
    pairs = list(zip(verdicts, groups, strict=True))
    leading, name = next(pair for pair in pairs if pair[0].status == worst_one)
    others = [f"{one.status} with {group}" for one, group in pairs if group != name]
    results = tuple(record for one in verdicts for record in one.results)
    reason = f"with {name}: {leading.reason}; {'; '.join(others)}"
    if status == REPRODUCED:  # all must be shown: the least sure of them is how sure that is
        values = [one.p_value for one in verdicts if one.p_value is not None]
        leading = replace(leading, seeds=min(one.seeds for one in verdicts), p_value=max(values, default=None))
    return replace(leading, status=status, reason=reason, results=results)


NUMERIC = ("data_hash", "weights_hash", "cpu", "device", "packages", "cuda", "dirty")
"""Facts of provenance that can change a metric: other data, another start, another order of sums, another code."""
NAMED = ("commit", "python", "driver", "nccl", "image_digest", "cores")
"""With `NUMERIC`, facts that are named where they differ."""
BEARING: dict[str, tuple[str, ...]] = {"nothing": (), "digits": NUMERIC, "times": (*NAMED, *NUMERIC)}
"""By what bears on a kind of test, the facts that leave it open where they differ between its sides.

Another commit can be the reason of other digits, but cells whose code changed are run again: it refutes nothing, and
takes nothing from what is shown.
"""
ON_GPU = ("cpu", "cores")
"""What changes no digit that a GPU has worked out."""
DIFFER = "the cells compared differ in "


def doubted(bears: str, evidence: Evidence, missing: Sequence[str], verdict: Verdict) -> Verdict:
    """Return the verdict with what is odd about its records; where that bears on it, it is no longer conclusive.

    missing: which cells of the matrix left no record. They count as failed, so that none can be left out to pass.
    """
    status, reasons = verdict.status, [verdict.reason]
    if mixed := differing(verdict.results):
        reasons.append(DIFFER + ", ".join(mixed))
        bearing = (*BEARING[bears], *(("commit",) if bears == "digits" and status == NOT_REPRODUCED else ()))
        if status in (REPRODUCED, NOT_REPRODUCED) and set(bearing) & _between_sides(verdict.results, bears):
            status = INCONCLUSIVE
    cells = (record.cell for record in verdict.results)
    open_for = [] if bears == "nothing" else [text for one in verdict.results if (text := mislabelled(one))]
    open_for += [evidence.twice[cell] for cell in dict.fromkeys(cells) if cell in evidence.twice]
    if open_for or (missing and status == REPRODUCED):
        status = INCONCLUSIVE
    more = dict.fromkeys((*(missing if verdict.results else ()), *open_for))
    return replace(
        verdict, status=status, reason="; ".join([*reasons, *(text for text in more if text not in verdict.reason)])
    )


def differing(results: Iterable[CellResult]) -> list[str]:
    """Return which facts of hardware, software and inputs are not the same in all records."""
    # Data and what is trained from differ by model; between models nothing is compared.
    by_model = grouped((one.cell.model, one.provenance) for one in results).values()
    facts = (*NAMED, *NUMERIC)
    return [key for key in facts if any(len({str(one.get(key)) for one in those}) > 1 for those in by_model)]


def _between_sides(results: Iterable[CellResult], bears: str) -> set[str]:
    """Facts that differ between records of one seed; for times, between any two."""
    by_seed = grouped(((one.cell.model, 0 if bears == "times" else one.cell.seed), one) for one in results)
    found = {key for those in by_seed.values() for key in differing(those)}
    on_gpus = not any(on_cpu(one) for those in by_seed.values() for one in those)
    return found - set(ON_GPU) if on_gpus and bears == "digits" else found
