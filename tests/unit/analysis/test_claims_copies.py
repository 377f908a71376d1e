"""One training under several names is found by its figures, also if each of them has a little noise."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.analysis.claims.copies import copied
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.near import FIGURE, HISTORY, near_groups
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from benchmarks.training.measure.phases import StepClock
from tests.claim_records import make, run_of

SIDES = [("baseline", "kept"), ("none", "kept"), ("w+2d", "kept"), ("w+2d", "streamed")]
KEPT = {"gpt2-bytes": "exp2-accuracy-gpt2-medium", "vgg-digits": "exp2-accuracy-vgg19"}


def cells(model: str) -> list[Cell]:
    return [Cell(model=model, scheme=scheme, gradients=how, seed=seed) for scheme, how in SIDES for seed in range(3)]


def noisy(value: Any, most: float, random: Random) -> Any:
    """Return a copy of `value` whose floating-point numbers differ at random by a share of at most `most`."""
    if isinstance(value, dict):
        return {name: noisy(one, most, random) for name, one in value.items()}
    if isinstance(value, list):
        return [noisy(one, most, random) for one in value]
    return value * (1 + random.uniform(-most, most)) if isinstance(value, float) else value


def history_of(record: CellResult, other: CellResult, most: float) -> CellResult:
    """The record with the history of another one, and noise."""
    history = noisy(other.metric_history, most, Random(record.cell.name))
    metric = history[-1][1]
    return replace(record, metric_history=history, metric=metric, metrics={str(record.metric_name): metric})


def times_of(record: CellResult, other: CellResult, most: float) -> CellResult:
    """The record with the times of another one, and noise."""
    random = Random(record.cell.name)
    seconds, phases = noisy(other.step_seconds, most, random), noisy(other.phase_seconds, most, random)
    ranks = [{**rank, "phase_seconds": phases} for rank in record.per_rank]
    speed = StepClock(seconds).steps_per_second
    return replace(record, step_seconds=seconds, phase_seconds=phases, steps_per_second=speed, per_rank=ranks)


def judged(records: dict[Cell, CellResult], claim: str) -> tuple[str, str]:
    one = next(row for row in ledger(run_of(records.values())) if row.id == claim)
    return one.status, one.reason


def test_residuals_of_one_size_are_not_the_same_in_all_schemes() -> None:
    """In a model without specific layers `2d` is the baseline, but an average is not what weights give."""
    assert copied_by("resnet50", "w", "a") and not copied_by("resnet50", "baseline", "2d")


def copied_by(model: str, *schemes: str) -> bool:
    one, other = ([make(Cell(model=model, scheme=scheme, seed=seed)) for seed in range(3)] for scheme in schemes)
    return bool(copied([*one, *(history_of(mine, theirs, 0.0) for mine, theirs in zip(other, one, strict=True))]))


@pytest.mark.parametrize(("most", "status"), [(0.0, "inconclusive"), (1e-9, "reproduced")])
def test_two_perplexities_are_compared_in_all_digits(most: float, status: str) -> None:
    """A training of two epochs has no more; so few that are only near are no proof."""
    pairs = [(scheme, seed) for scheme in ("baseline", "none", "w+2d") for seed in range(5)]
    records = {one: make(Cell(model="gpt2-medium", scheme=one[0], seed=one[1], world_size=8)) for one in pairs}
    records["w+2d", 0] = history_of(records["w+2d", 0], records["baseline", 0], most)
    found = judged({one.cell: one for one in records.values()}, "exp2-accuracy-gpt2-medium")
    assert found[0] == status and ("have the same history: they are one" in found[1]) == (status == "inconclusive")


@pytest.mark.parametrize("most", [0.0, 1e-9, 0.4 * HISTORY])
def test_seeds_whose_histories_are_one_with_noise_are_one_training(most: float) -> None:
    records = {cell: make(cell) for cell in cells("gpt2-bytes")}
    assert judged(records, KEPT["gpt2-bytes"])[0] == "reproduced"
    copies = {cell: history_of(one, records[replace(cell, seed=0)], most) for cell, one in records.items()}
    status, reason = judged(copies, KEPT["gpt2-bytes"])
    assert status == "inconclusive" and "have the same history: they are " in reason


@pytest.mark.parametrize(
    ("claim", "others"),
    [
        ("exp4-dgc-gpt2-medium", {"compressor": "dgc"}),
        ("exp4-qsgd-gpt2-medium", {"compressor": "qsgd"}),
        ("exp5-loss-0.1-gpt2-medium", {"density": 0.1}),
    ],
)
def test_a_history_is_not_that_of_another_compressor_or_density(claim: str, others: dict[str, Any]) -> None:
    """Records of top-k at density 0.01 under the names of trainings that sent other elements."""
    names = [{"model": "gpt2-bytes", "scheme": one, "seed": seed} for one in ("baseline", "none") for seed in range(3)]
    names += [{**name, "scheme": "w+2d"} for name in names[:3]]
    pairs = [(make(Cell(**name)), make(Cell(**name | others))) for name in names]
    dense = [make(Cell(model="gpt2-bytes", compressor="none", scheme="none", seed=seed)) for seed in range(3)]
    true = {one.cell: one for one in (*dense, *(one for pair in pairs for one in pair))}
    planted = {other.cell: history_of(other, one, 1e-9) for one, other in pairs}
    status, reason = judged(true | planted, claim)
    assert status == "inconclusive" and "have the same history: they are one training" in reason


@pytest.mark.parametrize("compressor", ["topk", "dgc"])
def test_lossless_packing_changes_no_history(compressor: str) -> None:
    one, other = (make(Cell(model="gpt2-bytes", compressor=name)) for name in (compressor, f"{compressor}+packed"))
    assert not copied([one, history_of(other, one, 0.0)])


@pytest.mark.parametrize("most", [0.0, 1e-9, 0.4 * FIGURE])
def test_seeds_that_took_the_times_of_one_with_noise_are_one_training(most: float) -> None:
    records = {cell: make(cell) for cell in cells("gpt2-bytes")}
    copies = {cell: times_of(one, records[replace(cell, seed=0)], most) for cell, one in records.items()}
    status, reason = judged(copies, KEPT["gpt2-bytes"])
    assert status == "inconclusive" and "took the same seconds in every " in reason


def test_noise_as_large_as_between_two_trainings_says_nothing() -> None:
    records = {cell: make(cell) for cell in cells("gpt2-bytes")}
    for change in (history_of, times_of):
        far = {cell: change(one, one, 1e-3) for cell, one in records.items()}
        assert judged(far, KEPT["gpt2-bytes"])[0] == "reproduced"


@pytest.mark.parametrize(("seeds", "status"), [(1, "reproduced"), (2, "inconclusive")])
def test_shares_of_few_answers_agree_by_chance_in_one_seed_and_not_in_two(seeds: int, status: str) -> None:
    """The other side of those cells is in no claim with them: only the whole run tells."""
    records = {cell: make(cell) for cell in cells("vgg-digits")}
    for seed in range(seeds):
        alone = Cell(model="vgg-digits", scheme="2d", seed=seed)
        records[alone] = history_of(make(alone), records[Cell(model="vgg-digits", scheme="w+2d", seed=seed)], 0.0)
    assert judged(records, KEPT["vgg-digits"])[0] == status


def test_a_share_of_answers_with_noise_is_no_whole_number_of_them() -> None:
    records = {cell: make(cell) for cell in cells("vgg-digits")}
    first = next(iter(records))
    records[first] = history_of(records[first], records[first], 1e-9)
    status, reason = judged(records, KEPT["vgg-digits"])
    assert status == "inconclusive" and "and not a whole number of right answers" in reason


FIGURES = st.lists(st.integers(1, 5).map(float), min_size=1, max_size=3)
CHANGES: list[Callable[[float], float]] = [lambda one: one, lambda one: one * (1 + 4e-7), lambda one: one * (1 - 4e-7)]


@given(st.lists(st.tuples(FIGURES, st.sampled_from(CHANGES)), max_size=12), st.randoms(use_true_random=False))
def test_groups_are_those_of_the_figures_without_noise_in_any_order(pairs: list[Any], random: Random) -> None:
    expected = {frozenset(i for i, (other, _) in enumerate(pairs) if other == plain) for plain, _ in pairs}
    given_pairs = [([change(one) for one in plain], number) for number, (plain, change) in enumerate(pairs)]
    random.shuffle(given_pairs)
    assert {frozenset(group) for group in near_groups(given_pairs, 1e-6)} == expected
