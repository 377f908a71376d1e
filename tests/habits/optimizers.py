"""Hooks, and optimizers of people's own: what counts, clips, or asks for more within `step()`."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from resireduce.errors import ConfigError
from tests.habits.script import Refused, Script, habit, with_optimizer


@habit()
def hooks_before_and_after_the_step(script: Script) -> list[object]:
    """Of the wrapped optimizer; the first reads the averaged gradients."""
    seen: list[object] = []
    model = script.net()
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = script.distribute(model, plain)
    plain.register_step_pre_hook(lambda *_: seen.extend(p.grad.norm() for p in model.parameters()))
    plain.register_step_post_hook(lambda *_: seen.extend(p.norm() for p in model.parameters()))
    script.train(model, optimizer)
    return [model, seen]


@habit()
def a_hook_before_the_step_that_clips(script: Script) -> nn.Module:
    """Registered after the model was distributed; gradients are the averages by then."""
    model = script.net()
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = script.distribute(model, plain)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    plain.register_step_pre_hook(clip)
    script.train(model, optimizer)
    return model


@habit()
def hooks_after_the_step_only(script: Script) -> list[object]:
    """Of the distributed optimizer and of the wrapped one: once a step each, with all parameters updated."""
    seen: list[object] = []
    model = script.net()
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    plain.register_step_post_hook(lambda *_: seen.extend(p.norm() for p in model.parameters()))
    optimizer = script.distribute(model, plain)
    optimizer.register_step_post_hook(lambda *_: seen.extend(p.norm() for p in model.parameters()))
    script.train(model, optimizer)
    return [model, seen]


@with_optimizer()
def a_hook_on_every_optimizer(script: Script, model: Any, optimizer: Any) -> Any:
    """register_optimizer_step_post_hook, as profilers do: once a step for the optimizer that updates."""
    counted: list[int] = []
    mine = {id(p) for p in model.parameters()}

    def count(stepped: torch.optim.Optimizer, *_: object) -> None:
        if any(id(p) in mine for group in stepped.param_groups for p in group["params"]):
            counted.append(1)

    handle = register_optimizer_step_post_hook(count)
    script.train(model, optimizer)
    handle.remove()
    return len(counted)


class Counting(torch.optim.Optimizer):
    """SGD of a rate that falls with the steps it has counted itself, in an attribute or in its groups."""

    def __init__(self, params: Iterable[nn.Parameter], in_group: bool):
        super().__init__(params, {"lr": 0.1, "k": 0})
        self.in_group, self.k = in_group, 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        self.k += 1
        for group in self.param_groups:
            group["k"] += 1
            count = group["k"] if self.in_group else self.k
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / count)


@habit()
def an_optimizer_that_counts_in_an_attribute(script: Script) -> list[object]:
    """Its own bias correction."""
    model = script.net()
    plain = Counting(model.parameters(), in_group=False)
    script.train(model, script.distribute(model, plain))
    return [model, plain.k]


@habit()
def an_optimizer_that_counts_in_its_groups(script: Script) -> list[object]:
    """As most of those do that do not count for each parameter."""
    model = script.net()
    plain = Counting(model.parameters(), in_group=True)
    script.train(model, script.distribute(model, plain))
    return [model, plain.param_groups[0]["k"]]


class Clipping(torch.optim.SGD):
    """Clips by the global norm within step()."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
        return super().step(closure)


@with_optimizer(wrapped=partial(Clipping, lr=0.1, momentum=0.9))
def an_optimizer_that_clips(script: Script, model: Any, optimizer: Any) -> None:
    """By the global norm of the averages, which it must see together."""
    script.train(model, optimizer)


@habit()
def a_step_that_was_patched(script: Script) -> list[object]:
    """optimizer.step replaced on the object, to measure it; the type is torch's own."""
    model, calls = script.net(), []
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = plain.step

    def patched(*arguments: Any) -> Any:
        calls.append(1)
        return step(*arguments)

    plain.step = patched  # type: ignore[method-assign]
    script.train(model, script.distribute(model, plain))
    return [model, len(calls)]


class Sharp(torch.optim.SGD):
    """Sharpness-aware: two gradients a step, the second at a point further up."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        assert closure is not None
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            held = [p.clone() for group in self.param_groups for p in group["params"]]
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=0.05)
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for p, before in zip((p for g in self.param_groups for p in g["params"]), held, strict=True):
                p.copy_(before)
        super().step()
        return loss


@habit(both=Refused(r"Sharp.*closure|closure.*Sharp"))
def a_sharpness_aware_optimizer(script: Script) -> nn.Module:
    """It calls its closure twice."""
    model = script.net()
    optimizer = script.distribute(model, Sharp(model.parameters(), 0.1))
    optimizer.step(script.closure(model, optimizer))
    return model


@habit(both=Refused(r"LBFGS", ConfigError))
def lbfgs(script: Script) -> nn.Module:
    """Many gradients a step."""
    model = script.net()
    script.distribute(model, torch.optim.LBFGS(model.parameters()))
    return model


class Averaged(torch.optim.SGD):
    """Two sets of weights, as schedule-free optimizers have, between which train() and eval() change."""

    training = True

    def train(self) -> None:
        self._scale(1.0 if self.training else 2.0, training=True)

    def eval(self) -> None:
        self._scale(0.5 if self.training else 1.0, training=False)

    @torch.no_grad()
    def _scale(self, factor: float, *, training: bool) -> None:
        self.training = training
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(factor)


@habit()
def an_optimizer_with_train_and_eval(script: Script) -> list[object]:
    """optimizer.train() and optimizer.eval() reach the wrapped one, and so does any attribute of its own."""
    model = script.net()
    optimizer = script.distribute(model, Averaged(model.parameters(), 0.1))
    losses = []
    for step in range(3):
        optimizer.train()
        script.train(model, optimizer, range(step, step + 1))
        optimizer.eval()
        losses.append(script.loss(model, 100))
    return [model, losses, optimizer.training]


@habit()
def optimizers_with_fused_and_foreach_steps(script: Script) -> nn.Module:
    """AdamW(fused=True) for one group of parameters, foreach for the other."""
    model = script.net()
    groups = [
        {"params": list(model.blocks.parameters()), "fused": True},
        {"params": [*model.first.parameters(), *model.head.parameters()], "foreach": True, "fused": None},
    ]
    script.train(model, script.distribute(model, torch.optim.AdamW(groups, 1e-3)))
    return model
