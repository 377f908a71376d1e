"""What the host does for a GPU in a step: the committed counts, and what they depend on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.micro.operations_command import OF_TABLE
from benchmarks.training.operations import KERNELS, WAYS, count, counted
from resireduce.grouping import Grouping
from resireduce.kernels.gpu import bucket

ROOT = Path(__file__).parents[3]


def alike(tensors: int, way: str, width: int = 110) -> dict[str, Any]:
    """What is counted of so many tensors in one bucket, which are one group."""
    model = nn.ParameterList(torch.empty(width, 100, device="meta") for _ in range(tensors))
    groups = {"groups": Grouping(groups=(tuple(map(str, range(tensors))),))} if way == "w+2d" else {}
    found = count(model, WAYS[way] | {"merge": "one"} | groups)
    assert found["buckets"] == 1
    return found


def launched(counts: dict[str, Any]) -> int:
    return sum(counts["launches"].values())


@pytest.mark.parametrize(("way", "more"), [("none", 0), ("topk", 0), ("w+2d", 6), ("fp16", 9), ("block8", 35)])
def test_launches_grow_with_the_tensors_of_a_bucket_as_the_page_says(way: str, more: int) -> None:
    few, many = alike(3, way), alike(20, way)
    assert launched(many) - launched(few) == 17 * more


def test_launches_of_top_k() -> None:
    found = alike(3, "topk")
    kernels = {name: number for name, number in found["launches"].items() if name in KERNELS[bucket]}
    assert kernels.keys() == {*KERNELS[bucket]}
    assert sum(kernels.values()) == 9, "seven for what is sent, and one for what has come of each of two ranks"
    assert found["launches"] == alike(3, "topk", width=1100)["launches"], "they do not grow with the elements either"


def test_the_committed_counts_are_those_of_today() -> None:
    rows = json.loads((ROOT / "results/reference/operations.json").read_text())["rows"]
    assert [(row["model"], row["way"]) for row in rows] == [(model, way) for model in OF_TABLE for way in WAYS]
    assert counted("resnet50") == [row for row in rows if row["model"] == "resnet50"]
