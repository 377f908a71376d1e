"""The command line of the library: what it prints, and that bad input ends it in one line."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.core.registry import MODELS
from resireduce.__main__ import main
from resireduce.plan import plan
from resireduce.planning.models import find_builder
from resireduce.scheme import SCHEMES

BAD_MODELS = [
    ("no_such_module:x", "model: 'no_such_module:x' cannot be loaded: ModuleNotFoundError: "),
    ("vgg-digit", "model: 'vgg-digit' is not known (did you mean 'vgg-digits'?); allowed: "),
    (
        "torch:__version__",
        "model: 'torch:__version__' is of type TorchVersion, and cannot be called to make one",
    ),
    ("builtins:int", "build: it returns an object of type int; give one that returns a module"),
]
BAD_OPTIONS = [
    (("--world-size", "0"), "world_size: 0 is not allowed; give a number of ranks, 1 or more"),
    (("--model", "tests.library.test_main:complex_numbers"), "model: 'weight' is complex; give real parameters"),
    (("--option", "row_ratio=2"), "row_ratio: 2 is not allowed; give a share"),
    (("--option", "ratio=0.5"), "options of scheme 'w+2d': 'ratio' is not known"),
    (("--model", "torch.nn:ReLU"), "model: ReLU has no trainable parameter"),
]


def test_the_installed_command_finds_models_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_module_of_mine.py").write_text("from torch.nn import Linear as build\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    command = "resireduce groups --model a_module_of_mine:build --arg in_features=200 --arg out_features=9"
    monkeypatch.setattr(sys, "argv", command.split())
    assert main() == 0, capsys.readouterr().err


def talkative() -> nn.Module:
    print("building a layer")
    return nn.Linear(100, 200)


def complex_numbers() -> nn.Module:
    return nn.Linear(200, 100, dtype=torch.complex64)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says on its way out: one line about the error, beside what Python says of warnings."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("error: ")
    return printed.err


REFUSED = [(("plan", "--model", model), told) for model, told in BAD_MODELS]
REFUSED += [(("plan", "--model", "vgg-digits", *options), told) for options, told in BAD_OPTIONS]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_be_planned_is_named_in_one_line(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_plan_prints_what_the_function_returns(capsys):
    options = ["--optimizer", "adamw", "--world-size", "1", "--json"]
    assert main(["plan", "--model", MODELS["vgg-digits"], *options]) == 0
    planned = plan(find_builder("vgg-digits"), optimizer="adamw", world_size=1)
    assert json.loads(capsys.readouterr().out) == planned


def test_groups_say_what_plan_counts_for_every_scheme(capsys):
    assert main(["groups", "--model", "vgg-digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["residual_bytes"] == {
        scheme: plan(find_builder("vgg-digits"), scheme=scheme, world_size=1)["residuals"] for scheme in SCHEMES
    }
    kinds = [name for group in found["groups"] for name in group] + found["specific"] + found["others"]
    assert sorted(kinds) == sorted(found["bytes"])
    whole = found["residual_bytes"]["baseline"]
    assert whole == sum(found["bytes"].values()) == found["saved_bytes"]["none"]
    assert found["saved_bytes"]["w"] == sum(found["bytes"][name] for group in found["groups"] for name in group[1:])


def test_what_a_constructor_prints_is_not_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "tests.library.test_main:talkative", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["parameters"] == 4 * 100 * 200 + 4 * 200
    assert "building a layer" in said.err
