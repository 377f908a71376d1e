"""What people do with `.grad`: after a backward pass, and where none has put it there."""

from typing import Any

import torch
from torch import Tensor, nn

from resireduce.errors import NonFiniteGradient
from tests.habits.script import Refused, Script, before_the_step, each_step, habit, with_optimizer

STREAMED = Refused(r"gradients have been streamed")
DROPPED = Refused(r"(dropped|replaced|changed|zero_grad\(\)).*between backward\(\) and step\(\)|have been streamed")


@before_the_step(streamed=Refused(r"max_grad_norm"))
def clipping_by_the_norm(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """clip_grad_norm_ between backward() and step(): of this rank's own gradient."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@before_the_step(streamed=STREAMED)
def norms_are_logged_by_hand(script: Script, model: Any, optimizer: Any, step: int) -> list[Tensor]:
    """Of every parameter, between backward() and step()."""
    return [p.grad.norm() for p in model.parameters()]


@before_the_step()
def parameters_without_gradient_are_listed(script: Script, model: Any, optimizer: Any, step: int) -> int:
    """A check for unused layers: `p.grad is None`."""
    return sum(p.grad is None for p in model.parameters())


@before_the_step(streamed=DROPPED)
def one_small_gradient_is_set_to_none(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """The same with a tensor that is not compressed."""
    model.head.bias.grad = None


@before_the_step(streamed=DROPPED)
def the_model_s_zero_grad_before_the_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """model.zero_grad() in the wrong place: nothing is trained."""
    model.zero_grad()


@before_the_step(streamed=STREAMED)
def gradients_are_scaled_in_place(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """p.grad.mul_(0.5), or div_ by a number of tokens."""
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)


@before_the_step(streamed=DROPPED)
def gradients_are_replaced_after_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """p.grad = other, a tensor from elsewhere."""
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * (0.1 + script.rank)


@with_optimizer(both=Refused(r"holds NaN or infinity", NonFiniteGradient))
def a_gradient_of_one_rank_is_nan(script: Script, model: Any, optimizer: Any) -> None:
    """Of the last rank: no rank takes the step."""
    script.train(model, optimizer, 1)
    if script.rank == script.ranks - 1:
        model.blocks[1].wide.weight.register_hook(lambda grad: grad * torch.nan)
    script.train(model, optimizer, 1)


@habit()
def hooks_on_parameters(script: Script) -> nn.Module:
    """register_hook to scale a layer's gradient, before and after the model is distributed."""
    model = script.net()
    model.blocks[0].wide.weight.register_hook(lambda grad: grad * 0.1)
    optimizer = script.sgd(model)
    model.head.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    script.train(model, optimizer)
    return model


def halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)  # type: ignore[union-attr]


@habit()
def hooks_after_accumulation_from_before(script: Script) -> nn.Module:
    """register_post_accumulate_grad_hook before the model is distributed: the gradient is still there."""
    model = script.net()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    script.train(model, script.sgd(model))
    return model


@with_optimizer(streamed=STREAMED)
def hooks_after_accumulation_from_later(script: Script, model: Any, optimizer: Any) -> None:
    """The same after it: streamed, the gradient has gone by then."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    script.train(model, optimizer)


@with_optimizer(streamed=Refused(r"zero_grad\(\) between backward\(\) and step\(\)"))
def zero_grad_before_the_step(script: Script, model: Any, optimizer: Any) -> None:
    """In the wrong place: in plain torch nothing is trained."""
    for step in range(2):
        script.loss(model, step).backward()
        optimizer.zero_grad()
        optimizer.step()
    script.train(model, optimizer, 2)


@each_step(steps=4, streamed=Refused(r"zero_grad\(\) between backward\(\) and step\(\)|a second backward\(\)"))
def a_batch_is_left_out_after_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """No step where a loss looks odd, on all ranks alike."""
    optimizer.zero_grad()
    script.loss(model, step).backward()
    if step != 1:
        optimizer.step()


@habit()
def a_backward_before_the_model_is_distributed(script: Script) -> nn.Module:
    """A dry run: its gradients are not taken for the first step's."""
    model = script.net()
    script.loss(model, 50).backward()
    script.train(model, script.sgd(model))
    return model
