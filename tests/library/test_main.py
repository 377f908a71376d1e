"""The command line of the library: what it prints, models and optimizers by name, and bad input, which is one line."""

import json
import subprocess
import sys
import warnings
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
UNUSABLE = [
    ((command, *STACK, *(f"--arg={one}" for one in given)), told)
    for given, told in BAD_ARGUMENTS
    for command in ("plan", "groups")
]
UNUSABLE += [
    (("plan", *STACK, "--optimizer", name, *(f"--optimizer-arg={one}" for one in given)), told)
    for (name, *given), told in BAD_OPTIMIZERS
]


def test_an_optimizer_in_place_of_what_makes_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^optimizer: an object of type SGD is not allowed; give sgd, adamw"):
        plan(stack, optimizer=torch.optim.SGD(net.parameters(), 0.1))  # type: ignore[arg-type]


def test_an_error_that_is_not_the_optimizer_s_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a bug of the library")

    monkeypatch.setattr("resireduce.plan.itemise_states", broken)
    with pytest.raises(LookupError, match="a bug"):
        plan(stack)


BAD_MODELS = [
    ("vgg-digit", "model: 'vgg-digit' is not known (did you mean 'vgg-digits'?); allowed: "),
    ("a:b:c", "model: 'a:b:c' is not allowed; give "),
    ("no_such_module:x", "model: 'no_such_module:x' cannot be loaded: ModuleNotFoundError: "),
    ("torch:no_such_name", "model: 'torch:no_such_name' cannot be loaded: AttributeError: "),
    ("torch:__version__", "model: 'torch:__version__' is of type TorchVersion and cannot be called; give "),
    ("torch:randn", "model: 'torch:randn' cannot be built: TypeError: "),  # its own message has several lines
    ("builtins:int", "model: 'builtins:int' returns an object of type int, no torch.nn.Module; give "),
    (
        "tests.library.test_main:reads_values",
        "reads_values' cannot be built: RuntimeError: Tensor.item() cannot be called on meta tensors; it reads values "
        "of tensors while it is built, and here they have none: give a function that builds it where they have, such "
        'as: def build(): with torch.device("cpu")',
    ),
]
BAD_OPTIONS = [
    (
        ("--model", "tests.library.test_main:sparse"),
        "model: the gradient of '0.weight' is sparse: make its layer with sparse=False",
    ),
    (("--world-size", "4097"), "world_size: 4097 is not allowed; give the number of ranks, 1 to 4096"),
    (
        ("--model", "tests.library.test_main:lazy"),
        "model: 'weight' has no shape yet; run one batch through the model first",
    ),
    (("--model", "tests.library.test_main:complex_numbers"), "model: 'weight' is complex; give real parameters"),
    (
        ("--backward-passes-per-step", "x"),
        "backward_passes_per_step: 'x' is not allowed; give a number of passes, 1 or more",
    ),
    (("--option", "row_ratio=2"), "row_ratio: 2 is not allowed; give a share"),
    (("--groups", "no.json"), "groups: 'no.json' cannot be read as JSON: "),
    (("--model", "torch.nn:ReLU"), "model: ReLU has no trainable parameter"),
    (("--world-size", "9" * 6000), "999... is not allowed; give the number of ranks, 1 to 4096"),
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


def sparse() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(100, 8, sparse=True))


def talkative() -> nn.Module:
    print("building a layer")
    warnings.warn("a layer is old", stacklevel=1)
    return nn.Linear(100, 200)


def lazy() -> nn.Module:
    return nn.LazyLinear(100)


def complex_numbers() -> nn.Module:
    return nn.Linear(200, 100, dtype=torch.complex64)


def reads_values() -> nn.Module:
    """As models with stochastic depth do."""
    widths = [width.item() for width in torch.linspace(100, 200, 2)]
    return nn.Linear(*map(int, widths))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says on its way out: one line about the error, after one for each warning."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    *warned, said = printed.err.splitlines()
    assert said.startswith("error: ") and all(line.startswith("warning: ") for line in warned)
    return printed.err


REFUSED = [((command, "--model", model), told) for model, told in BAD_MODELS for command in ("plan", "groups")]
REFUSED += [(("plan", "--model", "vgg-digits", *options), told) for options, told in BAD_OPTIONS]
REFUSED += UNUSABLE


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


def test_the_exit_status_is_that_of_the_process_and_warnings_that_the_environment_makes_errors_end_nothing() -> None:
    command = [sys.executable, "-W", "error", "-m", "resireduce", "plan", "--model"]
    command += ["tests.library.test_main:talkative", "--dense", "frist.*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "warning: a layer is old" in done.stderr and "error: dense: 'frist.*' matches no parameter" in done.stderr
