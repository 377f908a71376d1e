"""The verdict of one scope of a claim: every group of cells by itself, and all of them must show it."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.claims.case import Case
from benchmarks.claims.claim import Book, Claim, Scope
from benchmarks.claims.doubts import doubted
from benchmarks.claims.evidence import Evidence
from benchmarks.claims.kinds import KINDS
from benchmarks.claims.memory import STREAMED
from benchmarks.claims.select import FREE, Comparison, lesser, select
from benchmarks.claims.verdict import INCONCLUSIVE, NOT_RUN, REPRODUCED, Verdict, worst


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
        verdicts.append(doubted(kind.bears, evidence, [text for text in missing if text], kind.judge(case)))
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
