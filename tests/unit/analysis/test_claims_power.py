"""How many seeds a claim takes, and what is left of many claims at once."""

from dataclasses import replace
from math import atan, pi
from random import Random
from statistics import mean, stdev

import pytest

from benchmarks.analysis.budget.budget_command import seeds_line
from benchmarks.analysis.claims.ledger import adjusted, ledger
from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.analysis.claims.metric_claims import POWER, reference_metrics, seeds_needed
from benchmarks.analysis.statistics import Interval, interval, p_beyond, power
from benchmarks.core.cell import Cell
from tests.claim_records import make, run_of

BOOK = load_claims()


@pytest.mark.parametrize(("seeds", "room"), [(3, 1.2), (5, 1.2), (8, 1.2)])
def test_power_is_how_often_the_test_passes(seeds: int, room: float) -> None:
    random, passed, rounds = Random(seeds), 0, 4000
    for _ in range(rounds):
        found = interval([random.gauss(0.0, 1.0) for _ in range(seeds)])
        assert found is not None and found.half_width is not None
        passed += found.mean + found.half_width < room
    assert power(seeds, room) == pytest.approx(passed / rounds, abs=0.03)


def test_the_seeds_needed_are_the_fewest() -> None:
    needed = seeds_needed(1.0, 0.8)
    assert needed is not None and power(needed, 1.25) >= POWER > power(needed - 1, 1.25)
    assert seeds_needed(1.0, 40.0) is None and seeds_needed(0.0, 1.0) is None
    assert [seeds_needed(one, 1.0) for one in (0.5, 1.0, 2.0)] == sorted(
        (seeds_needed(one, 1.0) or 0 for one in (0.5, 1.0, 2.0)), reverse=True
    )


def test_a_claim_of_accuracy_says_how_many_it_needs() -> None:
    """By the spread of its records; before there are any by that of the small models."""
    claim = next(claim for claim in BOOK.claims if claim.id == "exp2-accuracy-vgg19")
    book = replace(BOOK, claims=(claim,))
    before = ledger(book=book)[0]
    assert before.seeds_needed and before.seeds_needed > 3 and before.p_value is None
    cells = [Cell(model="vgg-digits", scheme=s, seed=n) for s in ("baseline", "w+2d", "none") for n in range(3)]
    after = ledger(run_of([make(cell) for cell in cells]), book=book)[0]
    assert after.seeds_needed and after.seeds_needed <= 3 and after.status == after.holm == "reproduced"


def test_a_budget_says_how_many_seeds_a_config_has_and_needs() -> None:
    assert set(reference_metrics()) == {"resnet-digits", "vgg-digits", "gpt2-bytes", "bert-questions"}
    line = seeds_line([Cell(model="vgg19", seed=seed) for seed in range(3)])
    assert line.startswith("Seeds, for 80 % power to show that a metric is kept (vgg19 has 3, needs 6): ")
    assert seeds_line([Cell(model="vgg19")]) == ""


def test_a_p_value_is_small_where_an_interval_leaves_the_value_out() -> None:
    found = interval([1.0, 2.0, 3.5, 1.5])
    assert found is not None and found.half_width is not None
    edge = p_beyond(found, found.mean - found.half_width)
    assert edge == pytest.approx(0.05) and (p_beyond(found, 0.0) or 1) < 0.05 < (p_beyond(found, 1.9) or 0)
    assert p_beyond(Interval(1.0, None, 1), 0.0) is None and p_beyond(Interval(1.0, 0.0, 3), 0.0) == 0.0


@pytest.mark.parametrize("limit", [-0.2, 0.0, 1.0])
def test_a_p_value_is_that_of_students_test(limit: float) -> None:
    """Student's t has closed forms for two values, with one degree of freedom, and for three."""
    for values in ([0.3, 0.9], [0.3, -0.1, 0.4]):
        found, n = interval(values), len(values)
        t = abs(mean(values) - limit) / (stdev(values) / n**0.5)
        expected = 1 - (atan(t) * 2 / pi if n == 2 else t / (2 + t * t) ** 0.5)
        assert found is not None and p_beyond(found, limit) == pytest.approx(expected)


def test_holm_multiplies_by_the_claims_that_are_left() -> None:
    """The example of Holm's paper, three hypotheses; never less than one that is more certain, never above 1."""
    assert adjusted([0.01, 0.04, 0.02]) == pytest.approx([0.03, 0.04, 0.04])
    assert adjusted([0.03, 0.03, 0.9]) == pytest.approx([0.09, 0.09, 0.9])
    assert adjusted([]) == [] and adjusted([0.7, 0.8]) == [1.0, 1.0]


def test_what_passes_by_chance_among_many_is_open_by_holm() -> None:
    claims = tuple(claim for claim in BOOK.claims if claim.id.startswith("exp4-") and claim.kind == "not_worse")
    cells = [
        Cell(model=model, scheme=scheme, compressor=compressor, seed=seed)
        for model in ("resnet-digits", "vgg-digits", "gpt2-bytes", "bert-questions")
        for compressor in ("qsgd", "dgc")
        for scheme in ("baseline", "w+2d", "none")
        for seed in range(3)
    ]
    spread = {"accuracy": 0.47, "f1": 0.55, "perplexity": 0.56}
    records = [make(cell) for cell in cells]
    records = [
        make(one.cell, spread=spread[str(one.metric_name)] if one.cell.scheme == "w+2d" else 0.0) for one in records
    ]
    found = ledger(run_of(records), book=replace(BOOK, claims=claims))
    assert {one.status for one in found} == {"reproduced"} and {one.holm for one in found} == {"inconclusive"}
    assert all(
        "; of 8 claims tested in its family, inconclusive by Holm's correction (p = " in one.reason for one in found
    )
    assert all((one.p_value or 1) < 0.05 < (one.p_holm or 0) for one in found)
