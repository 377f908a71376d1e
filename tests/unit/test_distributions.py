"""Densities of residuals by group, and distances: against closed forms."""

import math

import pytest
import torch
from torch import Tensor

from benchmarks.build import build
from benchmarks.cell import Cell
from benchmarks.observe.distributions import BINS, LIMIT, describe, distances, quantiles
from benchmarks.record import CellResult
from benchmarks.run import to_result
from resireduce.comm.local import LocalCommunicator
from resireduce.grouping import Grouping


def normal(seed: int, scale: float = 1.0, shift: float = 0.0, count: int = 200_000) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale + shift


def test_distances_are_those_of_the_formulas() -> None:
    same = distances(quantiles(normal(0)), quantiles(normal(1, count=100_000)))
    assert same[0] < 0.02 and same[1] < 0.003, "two samples of one distribution, of different sizes"
    moved, _ = distances(quantiles(normal(0)), quantiles(normal(0, shift=0.5)))
    assert moved == pytest.approx(0.5, abs=0.01), "a shift by half a standard deviation"
    scaled, _ = distances(quantiles(normal(0)), quantiles(normal(0, scale=3)))
    # |3x - x| is on average 2 E|x|, and the pair's variance is (1 + 9) / 2.
    assert scaled == pytest.approx(2 * math.sqrt(2 / math.pi) / math.sqrt(5), abs=0.01)
    apart = distances(quantiles(normal(0, 0.1, -1)), quantiles(normal(1, 0.1, 1)))
    assert apart == pytest.approx((20, 1), rel=0.01), "no value in common"


def test_distances_are_symmetric_and_do_not_depend_on_units() -> None:
    one, other = quantiles(normal(0)), quantiles(normal(1, 2.0, 0.1))
    assert distances(one, other) == pytest.approx(distances(other, one))
    assert distances(1e-6 * one, 1e-6 * other) == pytest.approx(distances(one, other))


def test_zeros_have_no_distance_and_a_density() -> None:
    zeros = torch.zeros(100)
    assert distances(quantiles(zeros), quantiles(zeros)) == (0.0, 0.0)
    group = describe({"a": zeros, "b": zeros}, Grouping((("a", "b"),)))["groups"][0]
    assert sum(group["densities"][0]) * 2 * LIMIT / BINS == pytest.approx(1)


def test_groups_are_told_apart_from_one_another() -> None:
    residuals = {f"{kind}{i}": normal(10 * i + kind, (1, 5)[kind]).view(100, -1) for kind in (0, 1) for i in range(3)}
    found = describe(residuals, Grouping((("00", "01", "02"), ("10", "11", "12"))))
    assert (found["within"]["pairs"], found["between"]["pairs"]) == (6, 9)
    assert found["between"]["wasserstein"] > 20 * found["within"]["wasserstein"]
    assert found["between"]["jensen_shannon"] > 20 * found["within"]["jensen_shannon"]
    assert [group["standard_deviation"] for group in found["groups"]] == pytest.approx([1, 5], rel=0.01)
    assert [group["within"]["pairs"] for group in found["groups"]] == [3, 3]
    for density in found["groups"][1]["densities"]:
        assert sum(density) * 2 * LIMIT / BINS == pytest.approx(1, abs=1e-3)
        assert max(density) == pytest.approx(1 / math.sqrt(2 * math.pi), rel=0.05), "of a normal density, at its middle"


def test_a_cell_observes_what_it_is_asked_to(tmp_path) -> None:
    cell = Cell(model="vgg-digits", backend="local", world_size=1, steps=2, observe=("distributions",))
    outcomes = []
    for one in (cell, Cell(model="vgg-digits", backend="local", world_size=1, steps=2)):
        trainer = build(one, LocalCommunicator(), None, tmp_path)
        trainer.train()
        outcomes.append({"status": "ok", "reason": None, **trainer.result()})
    observed, plain = ({key: outcome.pop(key) for key in ("observations", "baseline_bytes")} for outcome in outcomes)
    assert plain["observations"] == {}
    assert outcomes[0]["metric_history"] == outcomes[1]["metric_history"]
    assert outcomes[0]["memory"]["total_bytes"] == outcomes[1]["memory"]["total_bytes"]
    result = to_result(cell, [outcomes[0] | {"observations": observed["observations"]}], 1.0, None)
    found = CellResult.from_dict(result.to_dict()).observations["distributions"]
    assert [len(group["members"]) for group in found["groups"]] == [3, 3]
    assert found["within"]["pairs"] == 6 and found["between"]["pairs"] == 9
    assert all(group["standard_deviation"] > 0 for group in found["groups"])
