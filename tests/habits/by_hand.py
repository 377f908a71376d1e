"""Gradients that no backward pass has put there, and zero_grad() in all its forms."""

import torch
from torch import nn

from tests.habits.gradients import DROPPED
from tests.habits.script import Refused, Script, habit


@habit()
def by_autograd_grad(script: Script) -> nn.Module:
    """torch.autograd.grad, and p.grad set by hand."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        grads = torch.autograd.grad(script.loss(model, step), list(model.parameters()))
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    return model


@habit()
def by_torch_func(script: Script) -> nn.Module:
    """torch.func.grad of a functional call."""
    model = script.net()
    optimizer = script.sgd(model, max_grad_norm=0.5)
    for step in range(3):
        optimizer.zero_grad()
        held = {name: p.detach() for name, p in model.named_parameters()}
        grads = torch.func.grad(lambda p, s=step: script.loss(lambda x: torch.func.functional_call(model, p, x), s))(
            held
        )
        for name, parameter in model.named_parameters():
            parameter.grad = grads[name]
        optimizer.step()
    return model


@habit()
def some_by_hand_and_some_by_backward(script: Script) -> nn.Module:
    """The head's gradient is computed apart; the rest comes from backward()."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        loss = script.loss(model, step)
        grads = torch.autograd.grad(loss, list(model.head.parameters()), retain_graph=True)
        loss.backward(inputs=[*model.first.parameters(), *model.blocks.parameters()])
        for parameter, grad in zip(model.head.parameters(), grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    return model


@habit()
def by_hand_in_one_step_and_by_backward_in_the_next(script: Script) -> nn.Module:
    """Evolution strategies now and then."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(4):
        if step % 2:
            generator = torch.Generator().manual_seed(script.rank)
            for parameter in model.parameters():
                parameter.grad = 0.01 * torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        else:
            script.train(model, optimizer, range(step, step + 1))
    return model


@habit()
def by_hand_on_one_rank_only(script: Script) -> nn.Module:
    """The others have no gradient at all in that step: they count as zeros."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 1)
    optimizer.zero_grad()
    if script.rank == script.ranks - 1:
        for parameter in model.parameters():
            parameter.grad = parameter.detach() / 10
    optimizer.step()
    script.train(model, optimizer, range(1, 3))
    return model


@habit()
def the_head_alone_by_backward_inputs(script: Script) -> nn.Module:
    """loss.backward(inputs=...): the others have no gradient on any rank, and are left as they are."""
    model = script.net()
    optimizer = script.distribute(model, torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1))
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward(inputs=list(model.head.parameters()))
        optimizer.step()
    return model


@habit()
def zero_grad_after_the_step(script: Script) -> nn.Module:
    """backward, step, zero_grad; the model's own."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        script.loss(model, step).backward()
        optimizer.step()
        model.zero_grad()
    return model


@habit()
def zero_grad_twice(script: Script) -> nn.Module:
    """The optimizer's and the model's, before backward() and after step()."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        model.zero_grad()
        script.loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@habit()
def zero_grad_to_zeros(script: Script) -> nn.Module:
    """zero_grad(set_to_none=False)."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        script.loss(model, step).backward()
        optimizer.step()
    return model


@habit()
def zero_grad_forgotten(script: Script) -> nn.Module:
    """Kept, gradients add up from step to step, as in plain torch; streamed, none is left after a step."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        script.loss(model, step).backward()
        optimizer.step()
    return model


@habit(streamed=Refused(r"zero_grad\(\) between backward\(\) and step\(\)"))
def zero_grad_before_the_step(script: Script) -> nn.Module:
    """In the wrong place: in plain torch nothing is trained."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(2):
        script.loss(model, step).backward()
        optimizer.zero_grad()
        optimizer.step()
    script.train(model, optimizer, 2)
    return model


@habit(streamed=Refused(r"zero_grad\(\) between backward\(\) and step\(\)|a second backward\(\)"))
def a_batch_is_left_out_after_backward(script: Script) -> nn.Module:
    """`continue` where a loss looks odd, on all ranks alike."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        if step == 1:
            continue
        optimizer.step()
    return model


@habit()
def a_backward_before_the_model_is_distributed(script: Script) -> nn.Module:
    """A dry run: its gradients are not taken for the first step's."""
    model = script.net()
    script.loss(model, 50).backward()
    script.train(model, script.sgd(model))
    return model


@habit(streamed=DROPPED)
def gradients_are_put_back(script: Script) -> nn.Module:
    """Saved, dropped, and set again before the step, as gradient surgery does."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        held = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        for parameter, grad in zip(model.parameters(), held, strict=True):
            parameter.grad = grad * 2
        optimizer.step()
    return model
