"""Gradients that no backward pass has put there, and zero_grad() in all its forms."""

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.habits.gradients import DROPPED
from tests.habits.script import Refused, Script, before_the_step, each_step, habit, with_optimizer


@each_step()
def by_autograd_grad(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """torch.autograd.grad, and p.grad set by hand."""
    optimizer.zero_grad()
    grads = torch.autograd.grad(script.loss(model, step), list(model.parameters()))
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    optimizer.step()


@each_step(settings={"max_grad_norm": 0.5})
def by_torch_func(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """torch.func.grad of a functional call."""
    optimizer.zero_grad()
    held = {name: p.detach() for name, p in model.named_parameters()}
    grads = torch.func.grad(lambda p, s=step: script.loss(lambda x: torch.func.functional_call(model, p, x), s))(held)
    for name, parameter in model.named_parameters():
        parameter.grad = grads[name]
    optimizer.step()


@each_step()
def some_by_hand_and_some_by_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """The head's gradient is computed apart; the rest comes from backward()."""
    optimizer.zero_grad()
    loss = script.loss(model, step)
    grads = torch.autograd.grad(loss, list(model.head.parameters()), retain_graph=True)
    loss.backward(inputs=[*model.first.parameters(), *model.blocks.parameters()])
    for parameter, grad in zip(model.head.parameters(), grads, strict=True):
        parameter.grad = grad
    optimizer.step()


@each_step(steps=4)
def by_hand_in_one_step_and_by_backward_in_the_next(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Evolution strategies now and then."""
    if step % 2:
        generator = torch.Generator().manual_seed(script.rank)
        for parameter in model.parameters():
            parameter.grad = 0.01 * torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    else:
        script.train(model, optimizer, range(step, step + 1))


@with_optimizer()
def by_hand_on_one_rank_only(script: Script, model: Any, optimizer: Any) -> None:
    """The others have no gradient at all in that step: they count as zeros."""
    script.train(model, optimizer, 1)
    optimizer.zero_grad()
    if script.rank == script.ranks - 1:
        for parameter in model.parameters():
            parameter.grad = parameter.detach() / 10
    optimizer.step()
    script.train(model, optimizer, range(1, 3))


@each_step(wrapped=partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1))
def the_head_alone_by_backward_inputs(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """loss.backward(inputs=...): the others have no gradient on any rank, and are left as they are."""
    optimizer.zero_grad()
    script.loss(model, step).backward(inputs=list(model.head.parameters()))
    optimizer.step()


@each_step()
def zero_grad_after_the_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """backward, step, zero_grad; the model's own."""
    script.loss(model, step).backward()
    optimizer.step()
    model.zero_grad()


@each_step()
def zero_grad_twice(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """The optimizer's and the model's, before backward() and after step()."""
    optimizer.zero_grad()
    model.zero_grad()
    script.loss(model, step).backward()
    optimizer.step()
    optimizer.zero_grad()


@each_step()
def zero_grad_to_zeros(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """zero_grad(set_to_none=False)."""
    optimizer.zero_grad(set_to_none=False)
    script.loss(model, step).backward()
    optimizer.step()


@each_step()
def zero_grad_forgotten(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Kept, gradients add up from step to step, as in plain torch; streamed, none is left after a step."""
    script.loss(model, step).backward()
    optimizer.step()


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


@before_the_step(streamed=DROPPED)
def gradients_are_put_back(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Saved, dropped, and set again before the step, as gradient surgery does."""
    held = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    for parameter, grad in zip(model.parameters(), held, strict=True):
        parameter.grad = grad * 2
