"""Every optimizer of torch, and many others, for some steps: the oracle to the last bit, or refused by name."""

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import bitsandbytes
import prodigyopt
import pytest
import pytorch_optimizer
import schedulefree
import torch
import torchao.optim
from packaging.version import Version
from pytorch_optimizer.base.exception import NoClosureError
from torch import Tensor, nn
from torch.optim import Optimizer

from resireduce.errors import ConfigError
from tests.habits.script import INPUTS, MODES, Habit, Script, by_library, by_oracle, values
from tests.worlds import distributed, same, seeded, take_steps

STEPS = 8


class Small(nn.Module):
    """One tensor that is compressed, one of 4,000 elements, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide = nn.Linear(INPUTS, 100), nn.Linear(100, 100)
        self.norm, self.head = nn.LayerNorm(100), nn.Linear(100, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.wide(torch.tanh(self.first(x))))))


class Wide(Small):
    """In float64."""

    def __init__(self) -> None:
        super().__init__()
        self.double()


Make = Callable[[nn.Module], Optimizer]


class NoArgument(torch.optim.SGD):
    """An optimizer whose `zero_grad` takes no argument."""

    step_is_separable = True

    def zero_grad(self) -> None:  # type: ignore[override]
        super().zero_grad()


def of(kind: Callable[..., Optimizer], **options: object) -> Make:
    return lambda model: kind(model.parameters(), **options)


def matrices(kind: Callable[..., Optimizer], **options: object) -> Make:
    return lambda model: kind([p for p in model.parameters() if p.dim() == 2], **options)


TORCH: dict[str, Make] = {
    name: of(kind) if name != "Muon" else matrices(kind)
    for name, kind in inspect.getmembers(torch.optim, inspect.isclass)
    if name not in ("Optimizer", "LBFGS", "SparseAdam")
} | {
    "SGD-nesterov": of(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "SGD-fused": of(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adam-amsgrad": of(torch.optim.Adam, amsgrad=True, weight_decay=1e-2),
    "Adam-foreach": of(torch.optim.Adam, foreach=True),
    "AdamW-fused": of(torch.optim.AdamW, fused=True),
    "Adagrad-fused": of(torch.optim.Adagrad, fused=True),
    "RMSprop-centered": of(torch.optim.RMSprop, centered=True, momentum=0.9),
}
NOT_ON_CPU = ("AdEMAMix32bit",)
"""bitsandbytes' own error, without this library too."""
BITSANDBYTES: dict[str, Make] = {
    name: of(kind, lr=1e-2, **({"momentum": 0.9} if "momentum" in inspect.signature(kind).parameters else {}))
    for name, kind in inspect.getmembers(bitsandbytes.optim, inspect.isclass)
    if issubclass(kind, Optimizer) and name not in NOT_ON_CPU and not name.startswith("Paged")  # the same on a CPU
}
OTHERS: dict[str, Make] = {
    "zero_grad()": of(NoArgument, lr=0.1),
    "Lion": of(pytorch_optimizer.Lion, lr=1e-3, weight_decay=0.1),
    "Lamb": of(pytorch_optimizer.Lamb),
    "Adan": of(pytorch_optimizer.Adan),
    "AdaBelief": of(pytorch_optimizer.AdaBelief),
    "Prodigy": of(pytorch_optimizer.Prodigy),
    "ScheduleFreeAdamW": of(pytorch_optimizer.ScheduleFreeAdamW),
    "Lookahead": lambda model: pytorch_optimizer.Lookahead(torch.optim.AdamW(model.parameters()), k=3),
    "schedulefree.SGD": of(schedulefree.SGDScheduleFree, lr=0.1, warmup_steps=5),
    "schedulefree.AdamW": of(schedulefree.AdamWScheduleFree, lr=1e-2, warmup_steps=5),
    "schedulefree.RAdam": of(schedulefree.RAdamScheduleFree, lr=1e-2),
    "prodigyopt": of(prodigyopt.Prodigy, weight_decay=0.01),
}
SUMMING = ("Prodigy", "prodigyopt")
"""Their products round by where in memory a gradient begins, in plain torch too."""


def training(make: Make, build: Callable[[], nn.Module]) -> Habit:
    def act(script: Script) -> list[Any]:
        model = script.net()
        plain = make(model)
        optimizer = script.distribute(model, plain)
        for name in ("train", "eval"):
            if hasattr(plain, name):
                getattr(optimizer, name)()
        if hasattr(plain, "train"):
            optimizer.train()
        script.train(model, optimizer, STEPS)
        return [model, plain.param_groups[0]["lr"]]

    return Habit(act, {}, build=build)


def check(make: Make, build: Callable[[], nn.Module] = Small) -> None:
    """To the last bit in float32, or to rounding in float64, in which it does not grow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = by_oracle(training(make, build), "streamed", 2)
        assert all(value.isfinite().all() for value in values(right))
        for mode in MODES:
            mine = by_library(training(make, build), mode, 2)
            for ours, theirs in zip(values(mine), values(right), strict=True):
                if build is Small:
                    assert torch.equal(ours, theirs), f"{mode}: {(ours - theirs).abs().max()} apart"
                else:
                    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    moved = zip(values(seeded(build)), values(right[0][0]), strict=True)
    assert any(not torch.equal(before, after) for before, after in moved)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """bitsandbytes compiles its functions unless other tests have compiled too much, and then rounds otherwise.

    And two threads, which our ranks are, spoil each other's states of 8 bits now and then, with or without the library.
    """
    update, lock = bitsandbytes.functional.optimizer_update_8bit_blockwise, threading.Lock()

    def one_at_a_time(*args: Any, **options: Any) -> None:
        with lock:
            update(*args, **options)

    monkeypatch.setattr(bitsandbytes.functional, "optimizer_update_8bit_blockwise", one_at_a_time)
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("name", TORCH)
def test_torch_s(name: str) -> None:
    check(TORCH[name])


@pytest.mark.parametrize("name", BITSANDBYTES)
def test_bitsandbytes(eager: None, name: str) -> None:
    check(BITSANDBYTES[name])


@pytest.mark.parametrize("name", OTHERS)
def test_others(eager: None, name: str) -> None:
    check(OTHERS[name], Wide if name in SUMMING else Small)


@pytest.mark.skipif(
    Version(torch.__version__).release[:2] == (2, 11),
    reason="torch 2.11 crashes where two threads, as our ranks are, compile a step of torchao, in plain training too",
)
def test_torchao_s() -> None:
    """It compiles itself for each shape, which takes 10 seconds."""
    check(lambda model: torchao.optim.AdamW8bit([model.wide.weight]))


REFUSED: dict[str, tuple[str, Make]] = {
    "SparseAdam": ("SparseAdam", of(torch.optim.SparseAdam)),
    "LBFGS": ("LBFGS", of(torch.optim.LBFGS)),
    "SAM": ("SAM", lambda model: pytorch_optimizer.SAM(model.parameters(), torch.optim.SGD, lr=0.1)),
    "GSAM's kin": ("WSAM", lambda model: pytorch_optimizer.WSAM(model, model.parameters(), torch.optim.SGD, lr=0.1)),
    "closures": ("AdamWScheduleFreeClosure", of(schedulefree.AdamWScheduleFreeClosure)),
    "no optimizer": (
        "ScheduleFreeWrapper",
        lambda model: schedulefree.ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), 0.1)),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, mode: str) -> None:
    kind, make = REFUSED[name]

    def act(script: Script) -> None:
        model = script.net()
        optimizer = script.distribute(model, make(model))
        optimizer.step(script.closure(model, optimizer))

    with warnings.catch_warnings(), pytest.raises((ConfigError, RuntimeError, TypeError, NoClosureError), match=kind):
        warnings.simplefilter("ignore")
        by_library(Habit(act, {}, build=Small), mode, 1)


def test_all_of_torch_s_are_there() -> None:
    kinds = {name for name, kind in inspect.getmembers(torch.optim, inspect.isclass) if kind is not Optimizer}
    assert kinds <= {*TORCH, *REFUSED}


class Renamed(torch.optim.AdamW):
    """A subclass whose step is that of its base class."""

    step_is_separable = True

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()


@pytest.mark.parametrize("update", ["in_step", "in_backward"])
def test_a_step_that_calls_that_of_its_base_class(update: str) -> None:
    """The first object of a class gives its step what runs hooks: there, and in that of its base class, as in torch."""
    models, runs = [], []
    for kind in (torch.optim.AdamW, Renamed, Renamed):
        model, hooks = seeded(Small), list[Optimizer]()
        plain = kind(model.parameters(), 0.01)
        plain.register_step_post_hook(lambda one, *_, hooks=hooks: hooks.append(one))
        optimizer = plain if len(models) == 2 else distributed(model, plain, compressor="none", update=update)
        take_steps(optimizer, lambda model=model: model(torch.ones(3, INPUTS)).square().mean(), 3)
        models.append(model)
        runs.append(len(hooks))
    assert same(*models[:2]) and same(*models[1:]) and runs == [3, 6, 6]


@pytest.mark.parametrize("changes", ["a function around it goes", "it becomes another class"])
def test_the_class_of_an_optimizer_changes_after_it_was_distributed(
    changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Averages come some at a time as long as the class is the one that was distributed, with its own step."""
    model, held = seeded(Small), list[int]()

    class Noting(torch.optim.AdamW):
        step_is_separable = True

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            held.append(sum(one.grad is not None for one in model.parameters()))
            super().step()

    class Other(Noting):
        pass

    plain, step = Noting(model.parameters(), 0.01), Noting.step
    with monkeypatch.context() as around:
        around.setattr(Noting, "step", lambda self, closure=None: step(self))
        optimizer = distributed(model, plain, compressor="none")
    if changes == "it becomes another class":
        plain.__class__ = Other
    take_steps(optimizer, lambda: model(torch.ones(3, INPUTS)).square().mean(), 1)
    assert sum(held) == len([*model.parameters()])
    assert (len(held) == 1) == (changes == "it becomes another class")
