"""Models and optimizers that a plan is given by name: found with their arguments, or refused in one line."""

import json
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

import resireduce.planning.models
from resireduce.__main__ import main
from resireduce.errors import ConfigError
from resireduce.plan import plan
from resireduce.planning.models import find_builder, offered_models
from tests.library.test_main import refused

HERE = "tests.library.test_zoo"
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
    entries = [EntryPoint("suite", f"{HERE}:OFFERED", resireduce.planning.models.GROUP)]
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


BAD = [
    (("--arg", "layers"), "arg: 'layers' is not allowed; give NAME=VALUE, such as layers=12"),
    (("--optimizer", "adam"), "'adam' is not known (did you mean 'adamw'?); allowed: adafactor, adamw, rmsprop, "),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_an_argument_or_an_optimizer_that_cannot_be_planned_is_one_line(capsys, arguments, message):
    assert message in refused(capsys, "plan", "--model", f"{HERE}:stack", *arguments)
