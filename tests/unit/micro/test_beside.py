"""This library beside other ways to train: what is compared is what is meant, and measured."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.core.ways import FORMS, FULLEST, RESIDENT, WAYS
from benchmarks.micro import beside_command as cli
from benchmarks.micro.beside_command import measure_way
from benchmarks.training.beside.beside_rank import MODELS
from benchmarks.training.beside.builders import build
from resireduce.errors import ConfigError
from resireduce.grouping import find_groups

ROOT = Path(__file__).parents[3]
REFERENCE: dict[str, Any] = json.loads((ROOT / "results/reference/beside.json").read_text(encoding="utf-8"))


def test_every_way_has_been_measured_and_what_the_kernel_counts_agrees_with_the_tensors() -> None:
    """Where both are known: a few percent of the parameters apart, and never less than there are."""
    measured = {(row["name"], row["model"], row["malloc"]) for row in REFERENCE["rows"] if "reason" not in row}
    assert measured == {(name, "bert-base", "exact") for name in (*WAYS, *FORMS)} | {
        (name, "stack", malloc) for name in RESIDENT for malloc in ("default", "cells")
    } | {(name, "gpt2-medium", "cells") for name in FULLEST}
    rows = [row for row in REFERENCE["rows"] if row["malloc"] == "exact" and "states_bytes" in row]
    assert len(rows) >= 10
    for row in rows:
        slack = 0.07 * row["parameters_bytes"]
        assert 0 <= row["held_bytes"] - sum(row["states_bytes"].values()) < slack, row["name"]
        if row["name"] in WAYS and "eight-bit" not in row["name"]:  # those have temporaries within operations
            assert 0 <= row["peak_bytes"] - row["states_peak_bytes"] < slack, row["name"]


def test_a_way_is_measured_on_two_ranks() -> None:
    found = measure_way("ddp", "small-stack")
    assert 1.0 <= found["sent_bytes"] / found["parameters_bytes"] < 1.1, "a ring of two sends all of it once"
    assert found["title"] == WAYS["ddp"].title and found["peak_bytes"] >= found["held_bytes"] > 0


def test_a_way_that_cannot_be_measured_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: str) -> dict[str, Any]:
        raise ConfigError("ModuleNotFoundError: No module named 'bitsandbytes'")

    monkeypatch.setattr(cli, "measure_way", fails)
    assert main(["measure", "beside", "--only", "eight-bit", "--output", str(tmp_path / "out.json")]) == 1
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["name"] == "eight-bit" and "bitsandbytes" in row["reason"]
    assert main(["measure", "beside", "--only", "nothing"]) == 2


@pytest.mark.parametrize(("form", "ours"), [("grace", "form-baseline"), ("released", "form-w+2d")])
@pytest.mark.usefixtures("alone")
def test_a_form_computes_what_the_library_does(form: str, ours: str) -> None:
    """So that what is compared is memory alone."""
    torch.manual_seed(0)
    model, forward = MODELS["small-stack"][0](), MODELS["small-stack"][1]()
    assert find_groups(model).groups and find_groups(model).specific == ("words.weight",)
    trained: list[nn.Module] = []
    for name in (form, ours):
        mine = copy.deepcopy(model)
        loop = build(name, mine)
        for _ in range(4):
            loop.train(forward)
        trained.append(mine)
        assert loop.held is not None
    for (name, one), other in zip(trained[0].named_parameters(), trained[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
