"""What is odd about the records of a comparison, and whether it leaves the claim open."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.claims.evidence import Evidence
from benchmarks.claims.planned import mislabelled
from benchmarks.claims.select import on_cpu
from benchmarks.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Verdict
from benchmarks.record import CellResult

NUMERIC = ("data_hash", "weights_hash", "cpu", "device", "packages", "cuda", "dirty")
"""Facts of provenance that can change a metric: other data, another start, another order of sums, another code."""
NAMED = ("commit", "python", "driver", "nccl", "image_digest", "cores")
"""With `NUMERIC`, facts that are named where they differ."""
BEARING: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "digits": NUMERIC,
    "times": (*NAMED, *NUMERIC),
}
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
    records = list(results)
    # Data and what is trained from differ by model; between models nothing is compared.
    by_model = [[one for one in records if one.cell.model == model] for model in {one.cell.model for one in records}]
    return [key for key in (*NAMED, *NUMERIC) if any(len(_values(those, key)) > 1 for those in by_model)]


def _between_sides(results: Iterable[CellResult], bears: str) -> set[str]:
    """Facts that differ between records of one seed; for times, between any two."""
    by_seed: dict[tuple[str, int], list[CellResult]] = {}
    for one in results:
        by_seed.setdefault((one.cell.model, 0 if bears == "times" else one.cell.seed), []).append(one)
    found = {key for those in by_seed.values() for key in differing(those)}
    on_gpus = not any(on_cpu(one) for those in by_seed.values() for one in those)
    return found - set(ON_GPU) if on_gpus and bears == "digits" else found


def _values(records: Iterable[CellResult], key: str) -> set[str]:
    return {str(one.provenance.get(key)) for one in records}
