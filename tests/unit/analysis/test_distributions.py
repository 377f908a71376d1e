"""Densities of residuals by group, and distances: against closed forms."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.analysis.charts.curves_chart import densities_chart
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.tables.table_list import TABLES
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from benchmarks.launching.outcomes import to_result
from benchmarks.training.build import build
from benchmarks.training.observe.distributions import BINS, LIMIT, describe, distances, distributions, quantiles
from resireduce.comm.local import LocalCommunicator
from resireduce.grouping import Grouping
from tests.records import make_result, save_run


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


def test_groups_are_told_apart_from_one_another() -> None:
    residuals = {f"{kind}{i}": normal(10 * i + kind, (1, 5)[kind]).view(100, -1) for kind in (0, 1) for i in range(3)}
    found = describe(residuals, Grouping((("00", "01", "02"), ("10", "11", "12"))))
    assert (found["within"]["pairs"], found["between"]["pairs"]) == (6, 9)
    assert found["between"]["wasserstein"] > 20 * found["within"]["wasserstein"]
    assert found["between"]["jensen_shannon"] > 20 * found["within"]["jensen_shannon"]
    assert [group["standard_deviation"] for group in found["groups"]] == pytest.approx([1, 5], rel=0.01)
    for density in found["groups"][1]["densities"]:
        assert sum(density) * 2 * LIMIT / BINS == pytest.approx(1, abs=1e-3)
        assert max(density) == pytest.approx(1 / math.sqrt(2 * math.pi), rel=0.05), "of a normal density, at its middle"


def test_a_cell_observes_what_it_is_asked_to(tmp_path) -> None:
    cell = Cell(model="vgg-digits", backend="local", world_size=1, steps=1, observe=("distributions",))
    trainer = build(cell, LocalCommunicator(), None, tmp_path)
    trainer.train()
    before = {name: tensor.clone() for name, tensor in trainer.optimizer.residual_state_dict().items()}
    seen = distributions(trainer.model, trainer.optimizer)
    after = trainer.optimizer.residual_state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items()), "observing changes nothing"
    found = CellResult.from_dict(to_result(cell, [trainer.result()], 1.0, None).to_dict()).observations["distributions"]
    assert found == seen, "as after the last step, before memory is measured"
    assert [len(group["members"]) for group in found["groups"]] == [3, 3]
    assert found["within"]["pairs"] == 6 and found["between"]["pairs"] == 9
    assert all(group["standard_deviation"] > 0 for group in found["groups"])


def test_the_report_shows_what_was_observed(tmp_path) -> None:
    config = {"matrix": [{"model": "vgg-digits", "world_size": [2, 4], "observe": ["distributions"], "seed": [0, 1]}]}
    groups = {f"{kind}{i}": normal(10 * i + kind, (1, 5)[kind], count=5000) for kind in (0, 1) for i in range(3)}
    seen = describe(groups, Grouping((("00", "01", "02"), ("10", "11", "12"))))
    save_run(tmp_path, config, lambda cell: replace(make_result(cell), observations={"distributions": seen}))
    table = TABLES["distributions"](load_run(tmp_path))
    assert [row[:4] for row in table.body] == [
        ["vgg-digits", f"baseline, kept, world size {ranks}", str(ranks), "2"] for ranks in (2, 4)
    ]
    every, first, second = table.records[:3]
    assert (every["group"], first["group"], second["group"]) == ("all", "00", "10")
    assert every["wasserstein_ratio"] == seen["between"]["wasserstein"] / seen["within"]["wasserstein"]
    assert (
        second["members"] == ["10", "11", "12"] and json.loads(json.dumps(second["densities"])) == second["densities"]
    )
    (rows,) = densities_chart(table.records)["datasets"].values()
    assert {row["line"] for row in rows} == {f"member {number}" for number in range(3)}
