"""Records that once gave a wrong verdict: each test has the name of the fault that let them."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import pytest

from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from tests.claim_records import make, ranks, run_of, states

BOOK = load_claims()
SEEDS = range(5)
ANSWER = 100 / 449
"""One of the held-out answers, in points."""
Change = Callable[[CellResult], dict[str, Any]]


def judged(name: str, results: list[CellResult], holes: list[tuple[Cell, str, str]] | None = None) -> LedgerRow:
    claim = next(claim for claim in BOOK.claims if claim.id == name)
    return ledger(run_of(results, holes or []), book=replace(BOOK, claims=(claim,)))[0]


def cells(scheme: str, **fields: Any) -> list[Cell]:
    return [Cell(model="vgg-digits", scheme=scheme, seed=seed, **fields) for seed in SEEDS]


def three(**fields: Any) -> dict[str, list[CellResult]]:
    """True records of the two sides of a claim of accuracy, and of its control."""
    return {scheme: [make(cell) for cell in cells(scheme, **fields)] for scheme in ("baseline", "w+2d", "none")}


def accuracy(sides: dict[str, list[CellResult]]) -> LedgerRow:
    return judged("exp2-accuracy-vgg19", [one for records in sides.values() for one in records])


def identity(*groups: list[CellResult]) -> str:
    return judged("ours-identical-vgg19", [one for group in groups for one in group]).status


def pair(worse: float = 0.0, **fields: Any) -> list[CellResult]:
    streamed = [make(cell, worse=worse) for cell in cells("baseline", gradients="streamed", **fields)]
    return [*streamed, *(make(cell) for cell in cells("baseline", **fields))]


# --- 1: one group of several is judged ---


@pytest.mark.parametrize("first", [True, False])
def test_only_the_first_of_several_groups_is_judged(first: bool) -> None:
    groups = [pair(backend="torch"), pair(worse=10, backend="horovod")]
    assert identity(*(groups if first else groups[::-1])) == "not reproduced"
    assert identity(pair(backend="torch"), pair(backend="horovod")) == "reproduced"


def test_a_group_that_failed_is_left_out() -> None:
    failed = [(one.cell, "error", "as planted") for one in pair(backend="horovod")]
    assert judged("ours-identical-vgg19", pair(), failed).status == "inconclusive"
    waiting = [(cell, "not run", "not run yet") for cell, _, _ in failed]
    one = judged("ours-identical-vgg19", pair(), waiting)
    assert one.status == "inconclusive" and "with world_size 2, backend horovod: " in one.reason


def test_ranks_that_a_claim_names_are_not_asked_for() -> None:
    both = [make(Cell(model="vgg19", scheme=scheme, world_size=1, backend="local")) for scheme in ("w+2d", "baseline")]
    wasted = [
        make(Cell(model="vgg19", scheme=scheme, world_size=8), **({} if scheme == "baseline" else bytes_of_baseline()))
        for scheme in ("w+2d", "baseline")
    ]
    assert judged("exp1-local-vgg19", both).status == "not run"
    assert judged("exp1-local-vgg19", [*both, *wasted]).status == "not reproduced"


def bytes_of_baseline() -> dict[str, int]:
    return states(Cell(model="vgg19", scheme="baseline"))


# --- 2: data and steps are free ---


def test_a_few_steps_on_synthetic_inputs_are_a_training() -> None:
    fields: dict[str, Any] = {"model": "vgg19", "scheme": "baseline", "steps": 20, "data": "synthetic"}
    short = [make(Cell(gradients=gradients, **fields)) for gradients in ("kept", "streamed")]
    one = judged("ours-identical-vgg19", short)
    assert one.status == "inconclusive"
    assert one.reason == "of vgg19 there is no whole training, only 20 steps (data synthetic, steps 20)"
    one = judged("ours-identical-vgg19", [*short, *pair(worse=10)])
    assert (one.status, one.scope) == ("not reproduced", "small models")


# --- 3: a control need lose only more than 0 ---


@pytest.mark.parametrize(("loss", "status"), [(0.9, "inconclusive"), (1.5, "reproduced")])
def test_a_control_that_loses_less_than_the_margin_can_tell(loss: float, status: str) -> None:
    sides = three()
    sides["none"] = [make(one.cell, worse=loss * 100 / 95 - 6) for one in sides["none"]]
    one = accuracy(sides)
    assert one.status == status and ("these records cannot tell" in one.reason) == (status == "inconclusive")


def test_a_metric_in_other_units_is_not_taken_for_one_that_is_kept() -> None:
    def logged(one: CellResult) -> CellResult:
        metric, history = log(one.metric or 1), [[step, log(value or 1)] for step, value in one.metric_history]
        return replace(one, metric=metric, metrics={"perplexity": metric}, metric_history=history)

    sides: dict[str, list[CellResult]] = {}
    for scheme, worse in (("baseline", 0.0), ("w+2d", 6.0), ("none", 0.0)):
        sides[scheme] = [make(Cell(model="gpt2-bytes", scheme=scheme, seed=seed), worse=worse) for seed in SEEDS]
    own = [logged(one) for one in sides["w+2d"]]
    one = judged("exp2-accuracy-gpt2-medium", [*sides["baseline"], *own, *sides["none"]])
    assert one.status == "inconclusive" and "are both metrics in the same units, on the same data?" in one.reason


# --- 5: only totals of memory are judged ---

GIB = 2**30
BYTES: list[tuple[str, Change]] = [
    ("w+2d", lambda one: parts(one, parameters=1, gradients=0, residuals=0, optimizer_states=0)),
    ("w+2d", lambda one: parts(one, parameters=(one.parameters_bytes or 0) // 3)),
    ("w+2d", lambda one: parts(one, gradients=0)),
    ("w+2d", lambda one: parts(one, optimizer_states=0)),
    ("w+2d", lambda one: parts(one, residuals=0)),
    ("baseline", lambda one: parts(one, residuals=(one.residuals_bytes or 0) + GIB)),
    ("baseline", lambda one: parts(one, optimizer_states=(one.optimizer_states_bytes or 0) + GIB)),
]


def parts(one: CellResult, **change: int) -> dict[str, Any]:
    held = {name: getattr(one, name) for name in states(one.cell)} | {f"{n}_bytes": v for n, v in change.items()}
    total = sum(held[f"{name}_bytes"] for name in ("parameters", "gradients", "residuals", "optimizer_states"))
    held |= {"total_bytes": total, "peak_states_bytes": total}
    return held | {"per_rank": ranks(one.cell, vars(one) | held)}


@pytest.mark.parametrize(("side", "change"), BYTES, ids=range(len(BYTES)))
def test_a_saving_comes_from_anything(side: str, change: Change) -> None:
    fields: dict[str, Any] = {"model": "bert-large", "world_size": 64}
    records = [make(Cell(scheme=scheme, **fields)) for scheme in ("w+2d", "baseline")]
    assert judged("exp1-cloud-bert-large", records).status == "reproduced"
    one = judged("exp1-cloud-bert-large", [replace(r, **change(r)) if r.cell.scheme == side else r for r in records])
    assert one.status == "inconclusive" and ", by plan " in one.reason


def test_a_saving_is_the_published_one_since_more_is_held_than_planned() -> None:
    """With so many bytes of residuals more that the larger saving of the plan shrinks to the one that is stated."""
    cell, other = (Cell(model="resnet50", world_size=8, scheme=scheme) for scheme in ("w+2d", "baseline"))
    more = round(0.881 * states(other)["total_bytes"]) - states(cell)["total_bytes"]
    planted = make(cell, **parts(make(cell), residuals=states(cell)["residuals_bytes"] + more))
    one = judged("exp1-local-resnet50", [planted, make(other)])
    assert one.status == "inconclusive" and one.reason.startswith("resnet50 11.90 %; published 11.9 %, 0.00 points ")
    assert f"; residuals_bytes of {cell.name} is " in one.reason


# --- 6: what no training can have left ---


def test_seeds_without_spread_are_certain() -> None:
    sides = three()
    for tested, other in zip(sides["w+2d"], list(sides["baseline"]), strict=True):
        sides["w+2d"][tested.cell.seed] = replace(tested, **ending(tested, (other.metric or 0) - ANSWER))
    one = accuracy(sides)
    assert one.status == "inconclusive" and "5 seeds differ by the same 0.2227" in one.reason


def ending(one: CellResult, metric: float) -> dict[str, Any]:
    """Another metric at the end, wherever the record has it."""
    history = [*one.metric_history[:-1], [one.steps, metric]]
    return {"metric": metric, "metrics": {str(one.metric_name): metric}, "metric_history": history}


# --- 7: provenance (and tests/unit/analysis/test_claims_planted.py) ---


def test_a_cpu_tests_what_is_said_of_64_gpus() -> None:
    records = [make(Cell(model="bert-large", world_size=64, scheme=scheme)) for scheme in ("w+2d", "baseline")]
    facts = {"device": "cpu", "cuda": None, "device_memory_bytes": None, "gpu_uuids": [None] * 64}
    on_cpu = [replace(one, provenance={**one.provenance, **facts, "process_group": "gloo"}) for one in records]
    one = judged("exp1-cloud-bert-large", on_cpu)
    assert one.status == "inconclusive" and one.reason.endswith("measured on a CPU, the claim is of GPUs")


# --- 9: failed cells ---


def test_a_broken_kept_record_is_replaced_by_a_streamed_one() -> None:
    streamed = [make(cell) for cell in cells("w+2d", gradients="streamed")]
    base = [make(cell) for cell in cells("baseline")]
    assert judged("exp1-local-vgg19", [*base, *streamed]).status == "reproduced", "no kept cell was to be run"
    broken = [(cell, "broken", "as planted") for cell in cells("w+2d")]
    one = judged("exp1-local-vgg19", [*base, *streamed], broken)
    assert (one.status, one.reason) == ("inconclusive", "vgg-digits.topk.w+2d.kept.d0.01.s0: broken, as planted")
