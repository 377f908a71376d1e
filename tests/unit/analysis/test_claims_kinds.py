"""Each kind of test has every status; a consistency claim is never left open."""

from dataclasses import replace

import pytest

from benchmarks.analysis.claims.claim import Book, Claim, LedgerRow, Scope
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.analysis.load_run import Run
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from tests.claim_records import distances, make, role_cells, run_of, wasted

BOOK = load_claims()
IDS = {
    "share": "obs1-share-overall",
    "saving": "exp1-cloud-bert-large",
    "maximum": "exp1-cloud-max",
    "not_worse": "exp2-cloud-accuracy-gpt2-large",
    "better": "sec4-largest-l1-vgg19",
    "identical": "ours-identical-resnet50",
    "throughput": "exp3-throughput-64-bert-large",
    "duration": "exp2-time-bert-base",
    "overlap": "sec4-overlap-vgg19",
}


def claim_of(kind: str) -> Claim:
    return next(claim for claim in BOOK.claims if claim.id == IDS[kind])


def judged(kind: str, run: Run, book: Book = BOOK) -> LedgerRow:
    return ledger(run, book=replace(book, claims=(claim_of(kind),)))[0]


def records(scope: Scope, **tested: float) -> list[CellResult]:
    return [make(c, **(tested if role == "tested" else {})) for role in scope.roles for c in role_cells(scope, role)]


@pytest.mark.parametrize("kind", IDS)
def test_without_cells_it_is_not_run(kind: str) -> None:
    scope = claim_of(kind).paper
    cells = [cell for role in scope.roles for cell in role_cells(scope, role)]
    found = judged(kind, run_of([], [(cell, "not run", "not run yet") for cell in cells]))
    assert (found.status, found.scope, found.value) == ("not run", "none", None)
    assert found.reason.startswith(f"{role_cells(scope, 'tested')[0].name}: not run")


@pytest.mark.parametrize("kind", IDS)
def test_cells_that_failed_leave_it_inconclusive(kind: str) -> None:
    scope = claim_of(kind).paper
    failed = [(cell, "oom", "8 GiB asked, 2 GiB free") for cell in role_cells(scope, "tested")]
    kept = [make(cell) for cell in role_cells(scope, "against")] if "against" in scope.roles else []
    found = judged(kind, run_of(kept, failed))
    assert (found.status, found.scope) == ("inconclusive", "paper")
    assert found.reason == f"{failed[0][0].name}: oom, 8 GiB asked, 2 GiB free"


@pytest.mark.parametrize("kind", ["share", "saving", "maximum"])
def test_bytes_that_differ_between_seeds_leave_it_inconclusive(kind: str) -> None:
    scope = claim_of(kind).paper
    results = records(scope)
    one = results[0]
    results[0] = make(one.cell, **wasted(one.cell, 0.1))
    found = judged(kind, run_of(results))
    assert found.status == "inconclusive" and found.reason.startswith("residuals_bytes differs between seeds: ")


@pytest.mark.parametrize("kind", ["not_worse", "better", "duration"])
def test_one_seed_leaves_it_inconclusive(kind: str) -> None:
    scope = claim_of(kind).paper
    found = judged(kind, run_of([make(cell) for role in scope.roles for cell in role_cells(scope, role, [5])]))
    assert (found.status, found.seeds, found.interval) == ("inconclusive", 1, None)
    assert "n = 1" in found.reason and found.value is not None


@pytest.mark.parametrize("kind", ["throughput", "duration"])
def test_other_hardware_leaves_times_inconclusive(kind: str) -> None:
    results = records(claim_of(kind).paper)
    results[0] = replace(results[0], provenance={**results[0].provenance, "device": "NVIDIA A100"})
    found = judged(kind, run_of(results))
    assert found.status == "inconclusive" and found.reason.endswith("; the cells compared differ in device")
    assert found.hardware is not None and "NVIDIA A100" in found.hardware


@pytest.mark.parametrize(
    ("worse", "spread", "status"),
    [
        (0.0, 0.0, "reproduced"),
        (0.0, 0.5, "reproduced"),
        (0.0, 0.7, "inconclusive"),
        (1.5, 0.1, "inconclusive"),
        (3.0, 0.7, "inconclusive"),
        (3.5, 0.7, "not reproduced"),
        (1.7, 0.0, "not reproduced"),
    ],
)
def test_a_metric_is_kept_within_its_margin(worse: float, spread: float, status: str) -> None:
    """1.64 % of the baseline's perplexity; half of the interval is 2.48 times the spread of three seeds."""
    found = judged("not_worse", run_of(records(claim_of("not_worse").paper, worse=worse, spread=spread)))
    assert found.status == status, found
    assert found.unit == "ppl" and found.published == pytest.approx(0.18)
    assert found.interval is not None and found.value is not None
    assert found.interval[0] <= found.value <= found.interval[1]
    assert "margin 0.25" in found.reason


def test_a_metric_of_the_papers_models_needs_its_control_measured() -> None:
    scope = claim_of("not_worse").paper
    some = [one for one in records(scope) if one.cell.scheme != "none"]
    found = judged("not_worse", run_of(some))
    assert found.status == "inconclusive"
    assert found.reason.endswith(f"the control, no residuals, is missing: {scope.command}")
    one = [make(cell) for cell in role_cells(scope, "control", [0])]
    found = judged("not_worse", run_of([*some, *one]))
    assert found.status == "inconclusive" and "; control, no residuals: n = 1: seed 0 alone has no" in found.reason
    good = [make(cell, worse=-6) for cell in role_cells(scope, "control")]
    found = judged("not_worse", run_of([*some, *good]))
    assert found.status == "inconclusive" and found.reason.endswith("these records cannot tell")
    # A loss that is seen needs no control.
    lost = [make(one.cell, worse=20.0 * (one.cell.scheme == "w+2d")) for one in some]
    assert judged("not_worse", run_of(lost)).status == "not reproduced"


@pytest.mark.parametrize(
    ("worse", "spread", "status", "says"),
    [
        (0.0, 0.0, "reproduced", ""),
        (0.0, 1.3, "reproduced", ""),
        (2.5, 0.3, "reproduced", ""),
        (0.0, 1.7, "inconclusive", ""),
        (9.0, 1.0, "not reproduced", ""),
        (3.0, 0.0, "not reproduced", "better, but not by as much as published"),
        (-9.0, 0.0, "not reproduced", "better, but by more than published"),
    ],
)
def test_better_is_above_zero_and_as_published(worse: float, spread: float, status: str, says: str) -> None:
    found = judged("better", run_of(records(claim_of("better").paper, worse=worse, spread=spread)))
    assert found.status == status and says in found.reason, found
    assert "published 1.50 to 5.50" in found.reason and found.unit == "%"


@pytest.mark.parametrize(
    ("worse", "status", "says"),
    [(0.0, "reproduced", ""), (4.0, "not reproduced", "by more than"), (-2.0, "not reproduced", "not by as much as")],
)
def test_better_by_a_stated_value_is_within_its_tolerance(worse: float, status: str, says: str) -> None:
    """The paper states 3.2 %, as the records have it where nothing is `worse`; a point of difference is allowed."""
    claim = next(claim for claim in BOOK.claims if claim.id == "sec4-d-drop-vgg19")
    cells = {role: role_cells(claim.paper, role) for role in claim.paper.roles}
    results = [make(cell, worse=worse * (role == "against")) for role, those in cells.items() for cell in those]
    found = ledger(run_of(results), book=replace(BOOK, claims=(claim,)))[0]
    assert found.status == status and says in found.reason and "published 2.20 to 4.20" in found.reason


def test_identical_compares_every_digit_of_every_seed() -> None:
    scope = claim_of("identical").paper
    results = records(scope)
    assert judged("identical", run_of(results)).status == "reproduced"
    (step, value), *others = results[0].metric_history
    history = [[step, (value or 0) * (1 + 2**-52)], *others]
    changed = [replace(results[0], metric_history=history), *results[1:]]
    found = judged("identical", run_of(changed))
    assert found.status == "not reproduced"
    assert found.reason.startswith(f"1 of 3 seeds differ; seed 0: metric_history differs: [{step}, ")
    apart = [one for one in results if (one.cell.seed == 0) == (one.cell.gradients == "kept")]
    found = judged("identical", run_of(apart))
    assert (found.status, found.reason) == ("inconclusive", "no seed in common")


@pytest.mark.parametrize(("slower", "status"), [(1.0, "reproduced"), (1.0293, "inconclusive"), (1.2, "not reproduced")])
def test_throughput_of_one_run_each_is_judged_by_blocks_of_steps(slower: float, status: str) -> None:
    scope = claim_of("throughput").paper
    results = [
        make(cell, slower=slower if role == "tested" else 1.0)
        for role in scope.roles
        for cell in role_cells(scope, role, [0])
    ]
    found = judged("throughput", run_of(results))
    assert found.status == status and found.reason.endswith("; one run each, over 10 blocks of steps"), found
    assert found.value == pytest.approx(100 * (1 - 1 / slower), abs=0.02) and found.published == 0.48
    few = [make(replace(one.cell, steps=10)) for one in results]
    found = judged("throughput", run_of(few))
    assert (found.status, found.interval) == ("inconclusive", None) and found.reason.endswith("n = 1: no interval")


def test_throughput_over_seeds_has_their_interval() -> None:
    found = judged("throughput", run_of(records(claim_of("throughput").paper, slower=1.2)))
    assert found.status == "not reproduced" and found.reason.endswith("; over 3 seeds") and found.seeds == 3


@pytest.mark.parametrize(
    ("within", "between", "status"),
    [
        (0.02, 0.1, "reproduced"),
        (0.02, 0.024, "inconclusive"),
        (0.02, 0.02, "not reproduced"),
        (0.2, 0.9, "not reproduced"),
    ],
)
def test_distributions_overlap_within_groups_and_less_between_them(within: float, between: float, status: str) -> None:
    cell = role_cells(claim_of("overlap").paper, "tested", [0])[0]
    near, far = ({"wasserstein": one, "jensen_shannon": one} for one in (within, between))
    found = judged("overlap", run_of([make(cell, observations={"distributions": distances(near, far)})]))
    assert (found.status, found.value) == (status, within)
    nothing = judged("overlap", run_of([make(cell, observations={})]))
    assert nothing.status == "inconclusive" and "holds no distances" in nothing.reason


def test_at_full_size_two_steps_of_one_scheme_are_enough_for_savings() -> None:
    """config/full-size.yaml has w+2d, streamed, alone: the baseline follows by arithmetic, and the reason says so."""
    claim = next(claim for claim in BOOK.claims if claim.id == "ours-saving-bert-large")
    book = replace(BOOK, claims=(claim,))
    fields = {"data": "synthetic", "backend": "local", "world_size": 1, "steps": 2, "batch_per_rank": 1}
    cell = Cell(model="bert-large", scheme="w+2d", gradients="streamed", length=32, **fields)
    found = ledger(run_of([make(cell)]), book=book)[0]
    assert (found.status, found.scope, round(found.value or 0, 2)) == ("reproduced", "paper", 13.46)
    assert found.reason == (
        "bert-large 13.46 %, at least 13 % and at most 16 % (kept gradients by arithmetic, as large as the parameters; "
        "full residuals by arithmetic, 1,335,099,392 bytes)"
    )


def test_that_streamed_cells_hold_no_gradients_is_never_assumed() -> None:
    claim = next(claim for claim in BOOK.claims if claim.id == "ours-streamed-sgd-vgg19")
    run = run_of([make(cell) for cell in role_cells(claim.paper, "against")])
    assert ledger(run, book=replace(BOOK, claims=(claim,)))[0].status == "not run"
