"""The verdict on one scope of a claim: every group of cells must show it, with nothing odd about the records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
    """Return what the evidence shows about a claim in one scope."""
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
    """Return the roles that count: the claim's own, and stand-ins for roles without cells.

    A control that diverged does not count as missing: it has shown its point.
    """
    own = [role for role in one.holes if role in scope.roles or role.removesuffix(STREAMED) not in one.results]
    return [
        role for role in own if role != "control" or not all(hole.has_diverged for hole in one.holes[role].values())
    ]


def combined(verdicts: Sequence[Verdict], groups: Sequence[str]) -> Verdict:
    """Return the verdict on all groups: the first of the worst, whatever the others show.

    If only some groups were run, the claim stays open.
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
    if status == REPRODUCED:  # all groups must show it, so the least certain one decides
        values = [one.p_value for one in verdicts if one.p_value is not None]
        leading = replace(leading, seeds=min(one.seeds for one in verdicts), p_value=max(values, default=None))
    return replace(leading, status=status, reason=reason, results=results)


CONTENT = ("resireduce", "benchmarks", "packages")
"""Parts of `provenance: content`: hashes of the library's and the suite's code, and what the data come from."""
NUMERIC: tuple[str, ...] = ("data_hash", "weights_hash", "cpu", "device", "packages", "cuda", "dirty")
NUMERIC += ("tf32", "deterministic", "cudnn")
NUMERIC += tuple(f"content: {name}" for name in CONTENT)
"""Provenance facts that can change a metric: other data, initial weights, order of sums or code."""
NAMED = ("commit", "python", "driver", "nccl", "image_digest", "cores", "environment")
"""Further facts that are named, with `NUMERIC`, if they differ."""
TRAINED = ("process_group", "steps")
"""What only claims of whole trainings and of times name: Gloo and NCCL, which add in other orders, and the steps, which
the recipe leaves open where the number of samples depends on how texts are cut."""
PLACED = ("link_rates", "ranks_per_host")
"""What only claims of times name: links that were slowed down, and how many ranks share a host."""
BEARING: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "digits": (*NUMERIC, *TRAINED),
    "times": (*NAMED, *NUMERIC, *TRAINED, *PLACED),
}
"""For each value of a kind's `bears`, the facts that leave a verdict open if they differ between its sides.

Another commit may explain other digits, so a claim is then not refuted. It does not weaken a reproduced claim, because
cells whose code changed are run again.
"""
ON_GPU = ("cpu", "cores")
"""Facts that change no digit computed on a GPU."""
DIFFER = "the cells compared differ in "


def doubted(bears: str, evidence: Evidence, missing: Sequence[str], verdict: Verdict) -> Verdict:
    """Return the verdict with what is odd about its records, inconclusive if that affects it.

    missing: the cells of the matrix without a record. They count as failed, so that none can be left out to pass.
    """
    status, reasons = verdict.status, [verdict.reason]
    if mixed := differing(verdict.results, bears):
        reasons.append(DIFFER + ", ".join(mixed))
        bearing = (*BEARING[bears], *(("commit",) if bears == "digits" and status == NOT_REPRODUCED else ()))
        if status in (REPRODUCED, NOT_REPRODUCED) and set(bearing) & _between_sides(verdict.results, bears):
            status = INCONCLUSIVE
    cells = (record.cell for record in verdict.results)
    finished = [one for one in verdict.results if bears != "nothing" and one.status == "ok"]
    open_for = [text for one in finished if (text := mislabelled(one))]
    open_for += [evidence.twice[cell] for cell in dict.fromkeys(cells) if cell in evidence.twice]
    if open_for or (missing and status == REPRODUCED):
        status = INCONCLUSIVE
    more = dict.fromkeys((*(missing if verdict.results else ()), *open_for))
    return replace(
        verdict, status=status, reason="; ".join([*reasons, *(text for text in more if text not in verdict.reason)])
    )


def differing(results: Iterable[CellResult], bears: str) -> list[str]:
    """Return the facts of hardware, software and inputs that are not the same in all records.

    bears: a key of `BEARING`, whose facts count too.
    """
    # Data and initial weights differ between models, but no comparison crosses models.
    by_model = grouped((one.cell.model, one) for one in results).values()
    facts = dict.fromkeys((*NAMED, *NUMERIC, *BEARING[bears]))
    return [key for key in facts if any(len(set(_values(those, key))) > 1 for those in by_model)]


def _values(results: Iterable[CellResult], key: str) -> Iterator[str]:
    """Yield the values of a fact; a training that diverged does not say all, such as the hash of its data."""
    for one in results:
        value = fact_of({**one.provenance, "steps": one.steps if one.status == "ok" else None}, key)
        if value is not None or one.status == "ok":
            yield str(value)


def fact_of(source: Mapping[str, Any], key: str) -> Any:
    """Return a fact of a record's provenance; None if it does not say."""
    where, _, name = key.rpartition(": ")
    found = source.get(where) if where else source
    value = found.get(name) if isinstance(found, Mapping) else None
    # Which hosts they are is another matter (`benchmarks.analysis.claims.speed`).
    return sorted(map(str, value.values())) if key == "ranks_per_host" and isinstance(value, Mapping) else value


def _between_sides(results: Iterable[CellResult], bears: str) -> set[str]:
    """Return the facts that differ between records of one seed or, for times, between any two."""
    by_seed = grouped(((one.cell.model, 0 if bears == "times" else one.cell.seed), one) for one in results)
    found = {key for those in by_seed.values() for key in differing(those, bears)}
    on_gpus = not any(on_cpu(one) for those in by_seed.values() for one in those)
    return found - set(ON_GPU) if on_gpus and bears == "digits" else found
