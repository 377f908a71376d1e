"""`python -m benchmarks measure counts`: what compressors send that fit a threshold, beside what they aim at."""

import json
import math
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.micro import counts_command
from benchmarks.micro.operations_command import OF_TABLE
from benchmarks.training.count_cases import INPUTS, counted, list_cases
from benchmarks.training.operations import WAYS, count
from benchmarks.training.operations import counted as counted_operations
from resireduce.grouping import Grouping

KNOWN = {
    "dgc-simple, 2 rounds": ((1.00, 1.02, 0.98), (1.7, None, 1.1)),
    "dgc-simple, 10 rounds": ((0.97, 1.02, 0.98), (0.75, None, 0.94)),
    "redsync": ((1.65, 1.81, 0.04), (0.54, None, 0.40)),
    "gaussian, 4 rounds": ((1.01, 0.22, 0.70), (None, None, 0.98)),
    "sidco exponential, 1 stage": ((0.03, 1.01, 1.47), (0.0, None, 4.7)),
    "sidco exponential, 2 stages": ((0.63, 1.0, 1.18), (0.11, None, 3.6)),
    "sidco exponential, 3 stages": ((1.12, 1.0, 0.67), (0.73, None, 1.1)),
    "sidco pareto, 1 stage": ((1.63, 1.0, 0.84), (6.8, None, 1.4)),
    "sidco pareto, 2 stages": ((0.91, 1.0, 0.92), (1.2, None, 0.90)),
    "sidco pareto, 3 stages": ((0.91, 1.0, 0.98), (0.92, None, 0.88)),
    "sidco gamma, 1 stage": ((0.55, 0.96, 1.62), (0.04, None, 5.2)),
    "sidco gamma, 2 stages": ((1.47, 0.99, 0.88), (2.2, None, 0.85)),
    "sidco gamma, 3 stages": ((1.45, 0.99, 0.93), (1.4, None, 0.84)),
}
"""Counts / targets at 0.01 and 0.001 of normal, Laplace and t3 inputs, by an implementation that shares no code."""


def test_counts_are_those_that_another_implementation_has() -> None:
    rows = counted(10**6, [0.01, 0.001], 6)
    found = {(row["case"], row["density"], row["input"]): row for row in rows}
    for case, by_density in KNOWN.items():
        for density, values in zip((0.01, 0.001), by_density, strict=True):
            for kind, known in zip(INPUTS, values, strict=True):
                row = found[case, density, kind]
                parts = [count / row["target"] for count in row["counts"]]
                # Theirs is of one draw, as far as is known: it varies as ours do, and by what rounding hides.
                varies = 3 * max(stdev(parts), 1 / math.sqrt(row["target"]) * mean(parts))
                rounding = 0.05 if known is not None and known > 2 else 0.01
                assert known is None or abs(mean(parts) - known) <= max(0.05 * known, varies, rounding), (case, row)


def test_a_tiny_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "counts.json"
    monkeypatch.setattr(counts_command, "ELEMENTS", 10**4)
    monkeypatch.setattr(counts_command, "DRAWS", 2)
    assert main(["measure", "counts", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert len(rows) == 2 * 3 * len([*list_cases(0.01)])
    assert all(row["target"] == 10**4 * row["density"] and len(row["counts"]) == 2 for row in rows)


def test_the_committed_counts_of_operations_on_a_gpu_are_those_of_today() -> None:
    rows = load_json(ROOT / "results/reference/operations.json")["rows"]
    assert [(row["model"], row["way"]) for row in rows] == [(model, way) for model in OF_TABLE for way in WAYS]
    assert counted_operations("resnet50") == [row for row in rows if row["model"] == "resnet50"]
    assert all(sum(row["launches"].values()) <= 12 * row["buckets"] for row in rows)


@pytest.mark.parametrize("way", ["none", "fp16", "topk", "block8", "w"])
def test_a_bucket_of_many_tensors_launches_no_more_than_one_of_few(way: str) -> None:
    def launches(tensors: int) -> dict[str, int]:
        with torch.device("meta"):
            model = nn.Sequential(*(nn.Linear(200, 200, bias=False) for _ in range(tensors)))
        names = tuple(name for name, _ in model.named_parameters())
        grouping = Grouping(groups=(names,), specific=())
        settings = {"scheme": "w", "compressor": "topk", "groups": grouping} if way == "w" else WAYS[way]
        counts = count(model, {**settings, "merge": "one"})
        assert counts["buckets"] == 1
        return counts["launches"]

    assert launches(3) == launches(20)
