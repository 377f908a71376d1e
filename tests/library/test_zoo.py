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
number = 3
NO_DICT = ["a", "b"]
OFFERED = {"mine": f"{HERE}:stack"}


def stack(layers: int = 2, *, width: int = 120, bias: bool = True) -> nn.Module:
    return nn.Sequential(*[nn.Linear(width, width, bias=bias) for _ in range(layers)])


def anything(**sizes: int) -> nn.Module:
    return stack(**sizes)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, int]:
    assert main(["plan", "--json", *arguments]) == 0
    found: dict[str, int] = json.loads(capsys.readouterr().out)
    return found


def offer(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    """Installed packages that offer models: entry point -> what it names."""
    entries = [EntryPoint(name, target, resireduce.planning.models.GROUP) for name, target in targets.items()]
    monkeypatch.setattr(resireduce.planning.models, "entry_points", lambda group: entries)


# --- arguments of a model ---


@pytest.mark.parametrize("function", ["stack", "anything"])
def test_a_model_is_given_its_arguments(capsys: pytest.CaptureFixture[str], function: str) -> None:
    model = ("--model", f"{HERE}:{function}")
    assert planned(capsys, *model, "--arg", "layers=3", "--arg", "width=130", "--arg", "bias=False") == plan(
        lambda: stack(3, width=130, bias=False)
    )


BAD_ARGUMENTS = [
    (("layerz=3",), f"arg of '{HERE}:stack': 'layerz' is not known (did you mean 'layers'?); allowed: bias, layers, "),
    (("layers",), "arg: 'layers' is not allowed; give NAME=VALUE, such as layers=12"),
    (("layers=3", "layers=4"), "arg: 'layers' is given twice; give it once"),
    (("layers=three",), f"model: '{HERE}:stack' cannot be built with layers='three': TypeError: "),
]


# --- a model, where something that builds one is needed ---


def test_a_module_instance_is_told_what_to_give_instead(capsys: pytest.CaptureFixture[str]) -> None:
    cure = "give a function or a class that returns one, such as: def build(): return Linear(...)"
    for command in ("plan", "groups"):
        said = refused(capsys, command, "--model", f"{HERE}:net")
        assert f"model: '{HERE}:net' is a model itself" in said and cure in said
    for build, message in (
        (net, "the Linear given is a model itself"), ("gpt2", "'gpt2' cannot be called"),
        (lambda: 3, "it returns an object of type int; give one"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^build: {message}"):
            plan(build)  # type: ignore[arg-type]


# --- packages that offer models ---


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_package.models:MODELS", "ModuleNotFoundError: No module named 'no_such_package'"),
        (f"{HERE}:NO_DICT", 'it is no dict of names to "module:callable"'),
    ],
)
def test_a_package_whose_models_cannot_be_loaded_is_passed_over_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: str, reason: str
) -> None:
    offer(monkeypatch, broken=target, suite=f"{HERE}:OFFERED")
    assert offered_models()[0] == OFFERED
    assert callable(find_builder("mine"))
    said = refused(capsys, "plan", "--model", "gpt2-bytes")
    assert "model: 'gpt2-bytes' is not known; allowed: mine; " in said
    assert f"cannot be loaded: 'broken' ({target}): {reason}" in said


# --- optimizers by their import path ---


def many_arguments(parameters: list[nn.Parameter], *, rate: float, betas: list[float]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate, betas=(betas[0], betas[1]))


class Broken(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        raise ValueError("no values here:\n the second line")


def test_an_optimizer_is_found_by_its_import_path(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", f"{HERE}:stack")
    adam = planned(capsys, *model, "--optimizer", "torch.optim:Adam")
    arguments = ("--optimizer-arg", "rate=0.1", "--optimizer-arg", "betas=[0.5, 0.9]")
    assert adam == planned(capsys, *model, "--optimizer", f"{HERE}:many_arguments", *arguments)
    assert adam == plan(stack, optimizer="torch.optim:Adam") == plan(stack, optimizer="adamw")
    amsgrad = plan(stack, optimizer="adamw", optimizer_args={"amsgrad": True})
    assert amsgrad["optimizer_states"] > 1.4 * adam["optimizer_states"]


BAD_OPTIMIZERS = [
    (("adam",), "'adam' is not known (did you mean 'adamw'?); allowed: adafactor, adamw, rmsprop, "
     "second-moment-adamw, sgd; or any by its import path"),
    (("torch.optim:",), "optimizer: 'torch.optim:' is not allowed; give sgd, adamw, second-moment-adamw, adafactor, "
     "rmsprop, or module:callable that takes"),
    (("no_such:Adam",), "optimizer: 'no_such:Adam' cannot be loaded: ModuleNotFoundError: "),
    ((f"{HERE}:number",), f"optimizer: '{HERE}:number' is of type int and cannot be called; give sgd, "),
    (("builtins:list",), "optimizer: 'builtins:list' returns an object of type list; give sgd, "),
    (("torch.optim:Adam", "lrr=1"), "optimizer_args of 'torch.optim:Adam': 'lrr' is not known (did you mean 'lr'?)"),
    (("torch.optim:Adam", "params=1"), "optimizer_args of 'torch.optim:Adam': 'params' is not known"),
    (("torch.optim:Adam", "lr=-1"), "optimizer: 'torch.optim:Adam' cannot be made with lr=-1: ValueError: Invalid "),
    ((f"{HERE}:Broken",), "cannot take a step on tensors without storage (the meta device), which plan uses: "
                          "ValueError: no values here: the second line; plan with one that keeps the same states"),
    (("torch.optim:LBFGS",), "LBFGS"),
]  # fmt: skip


STACK = ("--model", f"{HERE}:stack")
REFUSED = [
    ((command, *STACK, *(f"--arg={one}" for one in given)), told)
    for given, told in BAD_ARGUMENTS
    for command in ("plan", "groups")
]
REFUSED += [
    (("plan", *STACK, "--optimizer", name, *(f"--optimizer-arg={one}" for one in given)), told)
    for (name, *given), told in BAD_OPTIMIZERS
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_an_argument_or_an_optimizer_that_cannot_be_planned_is_one_line(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_an_optimizer_in_place_of_what_makes_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^optimizer: an object of type SGD is not allowed; give sgd, adamw"):
        plan(stack, optimizer=torch.optim.SGD(net.parameters(), 0.1))  # type: ignore[arg-type]


def test_an_error_that_is_not_the_optimizer_s_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a bug of the library")

    monkeypatch.setattr("resireduce.plan.itemise_states", broken)
    with pytest.raises(LookupError, match="a bug"):
        plan(stack)
