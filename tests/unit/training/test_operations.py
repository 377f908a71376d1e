"""What the host does for a GPU in a step: the committed counts, and what they depend on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.training.operations import KERNELS, WAYS, count
from resireduce.kernels.gpu import bucket

ROOT = Path(__file__).parents[3]


def alike(tensors: int, way: str, width: int = 110) -> dict[str, Any]:
    """What is counted of so many tensors in one bucket."""
    model = nn.ParameterList(torch.empty(width, 100, device="meta") for _ in range(tensors))
    return count(model, WAYS[way] | {"merge": "one"})


def launches(counts: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = counts["launches"]
    return found


def test_launches_of_top_k_do_not_grow_with_the_tensors_of_a_bucket() -> None:
    few, many = alike(3, "topk"), alike(40, "topk")
    assert few["buckets"] == many["buckets"] == 1 and launches(few) == launches(many)
    kernels = {name: number for name, number in launches(few).items() if name in KERNELS[bucket]}
    assert kernels.keys() == {*KERNELS[bucket]}
    assert sum(kernels.values()) == 9, "seven for what is sent, and one for what has come of each of two ranks"
    assert launches(few) == launches(alike(3, "topk", width=1100)), "they do not grow with the elements either"


def test_a_table_is_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "operations.json"
    assert main(["measure", "operations", "--models", "gpt2-bytes", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["way"] for row in rows] == [*WAYS]
    assert f"| {sum(rows[2]['launches'].values())} |" in capsys.readouterr().out
