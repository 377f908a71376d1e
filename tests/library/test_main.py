"""The command line of the library: what it prints, models and optimizers by name, and bad input, which is one line."""

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import nn

import resireduce.planning.models
from benchmarks.core.registry import MODELS
from resireduce.__main__ import main
from resireduce.errors import ConfigError
from resireduce.plan import plan
from resireduce.planning.models import find_builder, offered_models
from resireduce.scheme import SCHEMES

HERE = "tests.library.test_main"
net = nn.Linear(4, 4)
OFFERED = {"mine": f"{HERE}:stack"}


def stack(layers: int = 2, *, width: int = 120, bias: bool = True) -> nn.Module:
    return nn.Sequential(*[nn.Linear(width, width, bias=bias) for _ in range(layers)])


def anything(**sizes: int) -> nn.Module:
    return stack(**sizes)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, int]:
    assert main(["plan", "--json", *arguments]) == 0
    found: dict[str, int] = json.loads(capsys.readouterr().out)
    return found


# --- arguments of a model ---


@pytest.mark.parametrize("function", ["stack", "anything"])
def test_a_model_is_given_its_arguments(capsys: pytest.CaptureFixture[str], function: str) -> None:
    model = ("--model", f"{HERE}:{function}")
    assert planned(capsys, *model, "--arg", "layers=3", "--arg", "width=130", "--arg", "bias=False") == plan(
        lambda: stack(3, width=130, bias=False)
    )


def test_a_module_instance_is_told_what_to_give_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"model: '{HERE}:net' is of type Linear" in refused(capsys, "groups", "--model", f"{HERE}:net")
    for build, message in (
        (net, "an object of type Linear; give a function"), ("gpt2", "an object of type str"),
        (lambda: 3, "it returns an object of type int; give one"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^build: {message}"):
            plan(build)  # type: ignore[arg-type]


# --- packages that offer models ---


def test_models_that_packages_offer_have_a_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [EntryPoint("suite", f"{HERE}:OFFERED", "resireduce.models")]
    monkeypatch.setattr(resireduce.planning.models, "entry_points", lambda group: entries)
    assert offered_models() == OFFERED
    assert callable(find_builder("mine"))
    assert "model: 'gpt2-bytes' is not known; allowed: mine" in refused(capsys, "plan", "--model", "gpt2-bytes")


# --- optimizers by their import path ---


def many_arguments(parameters: list[nn.Parameter], *, rate: float, betas: list[float]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate, betas=(betas[0], betas[1]))


def test_an_optimizer_is_found_by_its_import_path(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", f"{HERE}:stack")
    adam = planned(capsys, *model, "--optimizer", "torch.optim:Adam")
    arguments = ("--optimizer-arg", "rate=0.1", "--optimizer-arg", "betas=[0.5, 0.9]")
    assert adam == planned(capsys, *model, "--optimizer", f"{HERE}:many_arguments", *arguments)
    assert adam == plan(stack, optimizer="torch.optim:Adam") == plan(stack, optimizer="adamw")
    amsgrad = plan(stack, optimizer="adamw", optimizer_args={"amsgrad": True})
    assert amsgrad["optimizer_states"] > 1.4 * adam["optimizer_states"]


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
    (
        ("--batch", "2", "--input", "no_such_module:x"),
        "input: 'no_such_module:x' cannot be loaded: ModuleNotFoundError: ",
    ),
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
REFUSED += [
    (("groups", "--model", "builtins:int"), "build: it returns an object of type int; give one that returns a module"),
    (
        ("plan", "--model", "no/such/config.json"),
        "model: 'no/such/config.json' is not there; give the config.json of a ",
    ),
    (("plan", "--model", "vgg-digits", "--groups", "no.json"), "groups: 'no.json' cannot be read as JSON: "),
    (
        ("plan", "--model", "vgg-digits", "--optimizer", "torch.optim:Adm"),
        "optimizer: 'torch.optim:Adm' cannot be load",
    ),
    (
        ("plan", "--model", f"{HERE}:stack", "--arg", "layers"),
        "arg: 'layers' is not allowed; give NAME=VALUE, such as ",
    ),
    (
        ("plan", "--model", "vgg-digits", "--optimizer", "adam"),
        "'adam' is not known (did you mean 'adamw'?); allowed: ",
    ),
]


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
