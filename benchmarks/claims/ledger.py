"""The ledger: what the records show of each claim, in the paper's order."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.claims.claim import Book, Claim, Scope
from benchmarks.claims.consistency import consistency
from benchmarks.claims.evidence import Evidence, gather
from benchmarks.claims.finding import Finding
from benchmarks.claims.holm import corrected
from benchmarks.claims.judge import judge
from benchmarks.claims.kinds import CONSISTENCY
from benchmarks.claims.load import load_claims
from benchmarks.claims.power import seeds_by_reference
from benchmarks.claims.verdict import INCONCLUSIVE, NOT_RUN, Verdict
from benchmarks.record import CellResult
from benchmarks.report.load import Run

OF_ACCURACY = ("not_worse", "better")
"""Kinds of tests that take as many seeds as their margin and spread ask for."""
ON_SMALL = "the published value itself was not tested"


def ledger(*runs: Run, book: Book | None = None) -> list[Finding]:
    """Return a finding for each claim; runs are put together, and neither their order nor that of records matters.

    Never raises for what is in the records: what is missing or odd shows in status and reason.
    """
    book = book or load_claims()
    evidence = gather(runs)
    return corrected([_finding(book, claim, evidence) for claim in book.claims])


def _finding(book: Book, claim: Claim, evidence: Evidence) -> Finding:
    if claim.kind == CONSISTENCY:
        return _as_finding(book, claim, claim.paper, consistency(book, claim.paper), "paper")
    at_full_size = judge(book, claim, claim.paper, evidence, is_paper=True)
    if at_full_size.results or claim.small is None:
        return _as_finding(
            book, claim, claim.paper, at_full_size, "none" if at_full_size.status == NOT_RUN else "paper"
        )
    on_small = judge(book, claim, claim.small, evidence, is_paper=False)
    if on_small.results:
        full = ON_SMALL if claim.published else "the paper's models were not tested"
        reason = f"{on_small.reason}. On {', '.join(claim.small.models)}; {full}: {claim.paper.command}"
        reason += f"; there: {at_full_size.reason}" if at_full_size.status == INCONCLUSIVE else ""
        return _as_finding(book, claim, claim.small, replace(on_small, reason=reason), "small models")
    if at_full_size.status == INCONCLUSIVE:
        return _as_finding(book, claim, claim.paper, at_full_size, "paper")
    if on_small.status == INCONCLUSIVE:
        return _as_finding(book, claim, claim.small, on_small, "small models")
    # Nothing was run: the small command first, if it is the smaller one.
    full = f"; the paper's models: {claim.paper.command}"
    scope = replace(claim.paper, command=claim.small.command)
    return _as_finding(book, claim, scope, replace(at_full_size, reason=at_full_size.reason + full), "none")


def _seeds_needed(book: Book, claim: Claim, scope: Scope, verdict: Verdict) -> int | None:
    """From the spread of the records; of a claim of accuracy without any, from that of the small models."""
    if verdict.seeds_needed is not None or claim.kind not in OF_ACCURACY:
        return verdict.seeds_needed
    return seeds_by_reference(book, claim, scope)


def _as_finding(book: Book, claim: Claim, scope: Scope, verdict: Verdict, where: str) -> Finding:
    published = verdict.published
    if published is None and "value" in claim.published:
        published = claim.published["value"].value
    return Finding(
        id=claim.id,
        statement=scope.statement,
        source=claim.source,
        status=verdict.status,
        scope=where,
        reason=" ".join(verdict.reason.split()),
        command=scope.command,
        value=verdict.value,
        interval=verdict.interval,
        published=published,
        unit=verdict.unit or (claim.published["value"].unit if "value" in claim.published else None),
        tolerance=verdict.tolerance,
        seeds=verdict.seeds,
        seeds_needed=_seeds_needed(book, claim, scope, verdict),
        p_value=verdict.p_value,
        hardware=_hardware(verdict.results),
        cells=tuple(dict.fromkeys(record.cell.name for record in verdict.results)),
    )


def _hardware(results: Sequence[CellResult]) -> str | None:
    """The devices of the records compared, and on how many ranks."""
    texts: dict[str, None] = {}
    for one in results:
        device = one.provenance.get("device")
        name = one.provenance.get("cpu") if device in (None, "cpu") else device
        texts[f"{name or 'not recorded'}, {one.cell.world_size} ranks"] = None
    return "; ".join(texts) or None
