"""The ledger: what the records show about each claim, in the paper's order, before and after Holm's correction.

Many claims are tested at once, so some pass by chance: S. Holm, "A simple sequentially rejective multiple test
procedure", Scandinavian Journal of Statistics 6, 1979.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.analysis.claims.claim import Book, Claim, Scope
from benchmarks.analysis.claims.consistency import consistency
from benchmarks.analysis.claims.evidence import Evidence, gather
from benchmarks.analysis.claims.judge import judge
from benchmarks.analysis.claims.kinds import CONSISTENCY
from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.analysis.claims.margins import seeds_by_reference
from benchmarks.analysis.claims.one_gpu import ON_ONE_GPU, ONE_GPU, one_gpu
from benchmarks.analysis.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, NOT_RUN, REPRODUCED, LedgerRow, Verdict
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.one_gpu.measured_device import Device
from benchmarks.analysis.statistics import CONFIDENCE
from benchmarks.core.record import CellResult

OF_ACCURACY = ("not_worse", "better")
"""Kinds of tests whose number of seeds follows from their margin and spread."""
ON_SMALL = "the published value itself was not tested"


def ledger(*runs: Run, book: Book | None = None, devices: Sequence[Device] = ()) -> list[LedgerRow]:
    """Return a row for each claim. Runs are merged, and neither their order nor that of records matters.

    devices: the GPUs whose one-GPU checks test the claims of that kind.
    Contents of records never raise: what is missing or odd shows in status and reason.
    """
    book = book or load_claims()
    evidence = gather(runs)
    return corrected([_row(book, claim, evidence, devices) for claim in book.claims])


def _row(book: Book, claim: Claim, evidence: Evidence, devices: Sequence[Device]) -> LedgerRow:
    if claim.kind == CONSISTENCY:
        return _as_row(book, claim, claim.paper, consistency(book, claim.paper), "paper")
    if claim.kind == ONE_GPU:
        found = one_gpu(claim, devices)
        where = "none" if found.verdict.status == NOT_RUN else ON_ONE_GPU
        return replace(
            _as_row(book, claim, claim.paper, found.verdict, where), hardware=found.hardware, cells=found.cells
        )
    return _of_cells(book, claim, evidence)


def _of_cells(book: Book, claim: Claim, evidence: Evidence) -> LedgerRow:
    """Return the row of a claim that cells of runs test: at full size if they do, else on small models."""
    at_full_size = judge(book, claim, claim.paper, evidence, is_paper=True)
    if at_full_size.results or claim.small is None:
        return _as_row(book, claim, claim.paper, at_full_size, "none" if at_full_size.status == NOT_RUN else "paper")
    on_small = judge(book, claim, claim.small, evidence, is_paper=False)
    if on_small.results:
        full = ON_SMALL if claim.published else "the paper's models were not tested"
        reason = f"{on_small.reason}. On {', '.join(claim.small.models)}; {full}: {claim.paper.command}"
        reason += f"; there: {at_full_size.reason}" if at_full_size.status == INCONCLUSIVE else ""
        return _as_row(book, claim, claim.small, replace(on_small, reason=reason), "small models")
    if at_full_size.status == INCONCLUSIVE:
        return _as_row(book, claim, claim.paper, at_full_size, "paper")
    if on_small.status == INCONCLUSIVE:
        return _as_row(book, claim, claim.small, on_small, "small models")
    # Nothing was run: name the small command first, if there is one.
    full = f"; the paper's models: {claim.paper.command}"
    scope = replace(claim.paper, command=claim.small.command)
    return _as_row(book, claim, scope, replace(at_full_size, reason=at_full_size.reason + full), "none")


def _as_row(book: Book, claim: Claim, scope: Scope, verdict: Verdict, where: str) -> LedgerRow:
    stated, needed = claim.published.get("value"), verdict.seeds_needed
    if needed is None and claim.kind in OF_ACCURACY:  # without a spread of its own, use that of the small models
        needed = seeds_by_reference(book, claim, scope)
    filled = {
        "reason": " ".join(verdict.reason.split()),
        "published": stated.value if verdict.published is None and stated else verdict.published,
        "unit": verdict.unit or (stated.unit if stated else None),
        "seeds_needed": needed,
        "results": (),
    }
    return LedgerRow(
        **vars(verdict) | filled,
        id=claim.id,
        statement=scope.statement,
        source=claim.source,
        scope=where,
        command=scope.command,
        hardware=_hardware(verdict.results),
        cells=tuple(dict.fromkeys(record.cell.name for record in verdict.results)),
    )


def _hardware(results: Sequence[CellResult]) -> str | None:
    """Return the devices of the compared records, each with the number of ranks."""
    texts: dict[str, None] = {}
    for one in results:
        device = one.provenance.get("device")
        name = one.provenance.get("cpu") if device in (None, "cpu") else device
        texts[f"{name or 'not recorded'}, {one.cell.world_size} ranks"] = None
    return "; ".join(texts) or None


def corrected(judged: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the rows with `p_holm` and `holm`; a verdict that the correction opens says so in its reason."""
    families = grouped((family(one.id), one) for one in judged if one.p_value is not None)
    changed = {}
    for those in families.values():
        for one, value in zip(those, adjusted([float(one.p_value or 0.0) for one in those]), strict=True):
            changed[one.id] = _with(one, value, len(those))
    return [changed.get(one.id, one) for one in judged]


def family(name: str) -> str:
    """Return the family of a claim: the experiment, observation or section that its id begins with."""
    return name.partition("-")[0]


def adjusted(values: Sequence[float]) -> list[float]:
    """Return Holm-adjusted p-values: rejecting those below a level keeps the family-wise error at that level."""
    found, least = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda one: values[one])):
        least = max(least, min(1.0, (len(values) - rank) * values[index]))
        found[index] = least
    return found


def _with(one: LedgerRow, value: float, tested: int) -> LedgerRow:
    opened = one.status in (REPRODUCED, NOT_REPRODUCED) and value > 1 - CONFIDENCE
    text = f"; of {tested} claims tested in its family, inconclusive by Holm's correction (p = {value:.2g})"
    return replace(
        one, p_holm=value, holm=INCONCLUSIVE if opened else one.status, reason=one.reason + (text if opened else "")
    )
