"""One training under several names is found by its figures."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.analysis.claims.ledger import ledger
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from tests.claim_records import make, run_of

SIDES = [("baseline", "kept"), ("none", "kept"), ("w+2d", "kept"), ("w+2d", "streamed")]
KEPT = {"gpt2-bytes": "exp2-accuracy-gpt2-medium", "vgg-digits": "exp2-accuracy-vgg19"}


def cells(model: str) -> list[Cell]:
    return [Cell(model=model, scheme=scheme, gradients=how, seed=seed) for scheme, how in SIDES for seed in range(3)]


def history_of(record: CellResult, other: CellResult) -> CellResult:
    """The record with the history of another one."""
    metrics = {str(record.metric_name): other.metric}
    return replace(record, metric_history=other.metric_history, metric=other.metric, metrics=metrics)


def times_of(record: CellResult, other: CellResult) -> CellResult:
    """The record with the times of another one."""
    names = ("step_seconds", "phase_seconds", "steps_per_second", "per_rank")
    return replace(record, **{name: getattr(other, name) for name in names})


def judged(records: dict[Cell, CellResult], claim: str) -> tuple[str, str]:
    one = next(row for row in ledger(run_of(records.values())) if row.id == claim)
    return one.status, one.reason


@pytest.mark.parametrize(("change", "said"), [(history_of, "have the same history: "), (times_of, "took the same ")])
def test_seeds_that_are_copies_of_one_are_one_training(change: Any, said: str) -> None:
    records = {cell: make(cell) for cell in cells("gpt2-bytes")}
    assert judged(records, KEPT["gpt2-bytes"])[0] == "reproduced"
    copies = {cell: change(one, records[replace(cell, seed=0)]) for cell, one in records.items()}
    status, reason = judged(copies, KEPT["gpt2-bytes"])
    assert status == "inconclusive" and said in reason


@pytest.mark.parametrize(("seeds", "status"), [(1, "reproduced"), (2, "inconclusive")])
def test_shares_of_few_answers_agree_by_chance_in_one_seed_and_not_in_two(seeds: int, status: str) -> None:
    """The other side of those cells is in no claim with them: only the whole run tells."""
    records = {cell: make(cell) for cell in cells("vgg-digits")}
    for seed in range(seeds):
        alone = Cell(model="vgg-digits", scheme="2d", seed=seed)
        records[alone] = history_of(make(alone), records[Cell(model="vgg-digits", scheme="w+2d", seed=seed)])
    assert judged(records, KEPT["vgg-digits"])[0] == status
