"""Hooks, and optimizers of people's own: what counts, clips, or asks for more within `step()`."""

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.habits.script import Script, habit, with_optimizer


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
