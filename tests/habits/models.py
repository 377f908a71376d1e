"""What people do to the model: copied, averaged, cast, frozen in part, and unfrozen."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.habits.script import Refused, Script, each_step, habit, with_optimizer


@with_optimizer()
def an_average_of_the_weights_by_deepcopy(script: Script, model: Any, optimizer: Any) -> Any:
    """EMA: the copy is made after the model was distributed, once between backward() and step()."""
    average = copy.deepcopy(model)
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        before = copy.deepcopy(model)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
    return [average, before]


@with_optimizer()
def parameters_get_new_memory(script: Script, model: Any, optimizer: Any) -> None:
    """p.data = p.data.clone(), as when parameters are flattened, or offloaded and back."""
    script.train(model, optimizer, 1)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    script.train(model, optimizer, range(1, 3))


@with_optimizer(both=Refused(r"double|float64|dtype"))
def the_model_is_cast_later(script: Script, model: Any, optimizer: Any) -> None:
    """model.double() after it was distributed."""
    script.train(model, optimizer, 1)
    model.double()
    optimizer.zero_grad()
    model(script.batch(1)[0].double()).square().mean().backward()
    optimizer.step()


@each_step()
def the_model_is_moved_to_where_it_is(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """model.to("cpu"), model.float(), model.train() within the loop."""
    model.to("cpu").float().train()
    script.train(model, optimizer, range(step, step + 1))


@each_step(steps=4)
def a_layer_is_frozen_between_forward_and_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Autograd then leaves its gradient out."""
    optimizer.zero_grad()
    loss = script.loss(model, step)
    model.blocks[0].requires_grad_(step % 2 == 0)
    loss.backward()
    optimizer.step()
    model.requires_grad_(True)


@each_step(steps=4, rounded=("streamed",))
def a_layer_is_frozen_in_the_last_pass(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """The same, where passes add up: it has the gradients of the first."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        script.loss(model, step).backward()
    loss = script.loss(model, step + 10)
    model.blocks[0].requires_grad_(step % 2 == 0)
    loss.backward()
    optimizer.step()
    model.requires_grad_(True)


@habit()
def a_hook_from_before_drops_gradients(script: Script) -> nn.Module:
    """A hook that the script has set before `distribute` drops the gradients of the first block on the last rank."""
    model = script.net()

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    for parameter in model.blocks[0].parameters() if script.rank == script.ranks - 1 else ():
        parameter.register_post_accumulate_grad_hook(drop)
    optimizer = script.sgd(model)
    script.train(model, optimizer)
    return model


@habit(both=Refused(r"unfreeze before|close\(\)"))
def a_layer_is_unfrozen_later(script: Script) -> nn.Module:
    """It was frozen when the model was distributed, and the optimizer holds it."""
    model = script.net()
    model.first.requires_grad_(False)
    optimizer = script.sgd(model)
    script.train(model, optimizer, 1)
    model.first.requires_grad_(True)
    script.train(model, optimizer, 1)
    return model
