"""Learning rates, schedules and other options; what is done between backward() and step() without gradients."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.habits.script import Script, before_the_step, each_step, habit, with_optimizer


@each_step(steps=4)
def the_rate_is_set_between_backward_and_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """As GPT scripts do: the rate of this very step, computed late."""
    script.loss(model, step).backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (step + 1)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@habit()
def the_rate_is_set_in_the_wrapped_optimizer(script: Script) -> nn.Module:
    """It was kept under another name, and its groups are changed there."""
    model = script.net()
    plain = torch.optim.AdamW(model.parameters(), 1e-3)
    optimizer = script.distribute(model, plain)
    for step in range(3):
        script.loss(model, step).backward()
        plain.param_groups[0]["lr"] = plain.param_groups[0]["lr"] / 2
        plain.param_groups[0]["weight_decay"] = 0.1 * step
        optimizer.step()
        plain.zero_grad()
    return model


@with_optimizer()
def a_rate_of_zero(script: Script, model: Any, optimizer: Any) -> None:
    """The first step of a linear warm-up that begins at 0."""
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: step / 3)
    for step in range(4):
        script.train(model, optimizer, range(step, step + 1))
        scheduler.step()


@with_optimizer()
def a_schedule_after_the_step(script: Script, model: Any, optimizer: Any) -> Any:
    """As documented."""
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(3):
        script.train(model, optimizer, range(step, step + 1))
        scheduler.step()
    return scheduler.get_last_lr()


@with_optimizer()
def a_schedule_before_the_step(script: Script, model: Any, optimizer: Any) -> Any:
    """As before torch 1.1, between backward() and step(): torch warns, and the rate is the new one."""
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        scheduler.step()
        optimizer.step()
    return scheduler.get_last_lr()


@habit()
def a_schedule_of_the_wrapped_optimizer(script: Script) -> list[object]:
    """Made before the optimizer was distributed; rate and momentum both move."""
    model = script.net()
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(plain, max_lr=0.2, total_steps=4)
    optimizer = script.distribute(model, plain)
    for step in range(3):
        script.train(model, optimizer, range(step, step + 1))
        scheduler.step()
    return [model, scheduler.get_last_lr(), plain.param_groups[0]["momentum"]]


@with_optimizer()
def a_schedule_by_the_loss(script: Script, model: Any, optimizer: Any) -> Any:
    """ReduceLROnPlateau, of a loss that is the same on all ranks."""
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for step in range(4):
        script.train(model, optimizer, range(step, step + 1))
        scheduler.step(1.0)
    return optimizer.param_groups[0]["lr"]


@before_the_step()
def the_model_is_looked_at_between_backward_and_step(
    script: Script, model: Any, optimizer: Any, step: int
) -> list[Tensor]:
    """Evaluated without gradients, norms logged, a checkpoint taken: of parameters that are not updated yet."""
    model.eval()
    with torch.no_grad():
        seen = [script.loss(model, 100), *(p.norm() for p in model.parameters())]
    seen += [value.clone() for value in model.state_dict().values()]
    model.train()
    return seen


@with_optimizer()
def a_closure(script: Script, model: Any, optimizer: Any) -> Any:
    """The loss is computed in step(closure)."""
    losses: list[Tensor] = []
    for step in range(3):
        losses.append(optimizer.step(script.closure(model, optimizer, step)))
    return losses


@habit()
def groups_with_options_of_their_own(script: Script) -> nn.Module:
    """No decay for biases and norms, another rate for the head; one of them changed later by its index."""
    model = script.net()
    head = {id(p) for p in model.head.parameters()}
    others = [p for p in model.parameters() if id(p) not in head]
    groups = [
        {"params": [p for p in others if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in others if p.dim() == 1], "weight_decay": 0.0},
        {"params": list(model.head.parameters()), "lr": 1e-2},
    ]
    optimizer = script.distribute(model, torch.optim.AdamW(groups, 1e-3))
    for step in range(3):
        script.train(model, optimizer, range(step, step + 1))
        optimizer.param_groups[2]["lr"] /= 2
    return model


@with_optimizer(wrapped=partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1))
def step_before_any_backward(script: Script, model: Any, optimizer: Any) -> None:
    """Nothing has a gradient: nothing happens, with decay and momentum too."""
    optimizer.step()
    script.train(model, optimizer)


@each_step()
def two_steps_for_one_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Streamed, nothing is left for the second; kept, it takes what `.grad` holds, as ever."""
    script.train(model, optimizer, range(step, step + 1))
    optimizer.step()
