"""Rarer things, of which each was a trap somewhere: shared and borrowed tensors, states reset, odd parameters."""

from collections import defaultdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.errors import ConfigError
from tests.habits.script import INPUTS, Net, Refused, Script, before_the_step, each_step, habit, with_optimizer


def borrowed(script: Script, **options: object) -> list[object]:
    """Directions that are computed once; step() must not write into them."""
    model = script.net()
    optimizer = script.sgd(model, **options)
    directions = torch.autograd.grad(script.loss(model, 0), list(model.parameters()))
    before = [direction.clone() for direction in directions]
    for _ in range(3):
        for parameter, direction in zip(model.parameters(), directions, strict=True):
            parameter.grad = direction
        optimizer.step()
        optimizer.zero_grad()
    return [model, [torch.equal(a, b) for a, b in zip(directions, before, strict=True)]]


@habit()
def the_same_tensors_are_the_gradients_of_every_step(script: Script) -> list[object]:
    """p.grad = direction, again and again."""
    return borrowed(script)


@habit()
def the_same_tensors_are_the_gradients_of_every_step_without_compression(script: Script) -> list[object]:
    """The same, where what is sent is the gradient itself."""
    return borrowed(script, compressor="none")


@habit(streamed=Refused(r"max_local_grad_norm", ConfigError))
def the_same_tensors_are_the_gradients_of_every_step_and_clipped(script: Script) -> list[object]:
    """Each rank's own are clipped, in the library; by both norms."""
    return borrowed(script, max_local_grad_norm=0.05, max_grad_norm=0.01)


class Twins(Net):
    """Two layers of one shape, which get one gradient, and a third."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = nn.Linear(100, 100)


def twins(script: Script, **options: object) -> nn.Module:
    model = script.net()
    optimizer = script.sgd(model, **options)
    pairs = ((model.twin.weight, model.blocks[0].wide.weight), (model.twin.bias, model.blocks[0].wide.bias))
    for step in range(3):
        optimizer.zero_grad()
        grads = torch.autograd.grad(script.loss(model, step), [second for _, second in pairs])
        for (first, second), grad in zip(pairs, grads, strict=True):
            first.grad = second.grad = grad
        optimizer.step()
    return model


@habit(build=Twins)
def one_tensor_is_the_gradient_of_two_without_compression(script: Script) -> nn.Module:
    """The same, where what is sent is the gradient itself."""
    return twins(script, compressor="none")


@each_step(settings={"compressor": "none"})
def a_gradient_by_hand_is_expanded(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """A scalar in the form of the parameter: small ones, and without compression, since all is equal."""
    optimizer.zero_grad()
    for parameter in model.parameters():
        parameter.grad = torch.tensor(0.01 * (step + script.rank)).expand(parameter.shape)
    optimizer.step()


@with_optimizer(wrapped=partial(torch.optim.AdamW, lr=1e-3))
def the_state_is_reset(script: Script, model: Any, optimizer: Any) -> None:
    """`optimizer.state = defaultdict(dict)`, a known way to forget momentum."""
    script.train(model, optimizer, 2)
    optimizer.state = defaultdict(dict)
    script.train(model, optimizer, 2)


@before_the_step(steps=4)
def a_layer_is_frozen_between_backward_and_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Its gradient is there already: in plain torch it is still updated in this step."""
    model.blocks[0].requires_grad_(step >= 2)


@each_step(build=lambda: Net().double(), rounded=("streamed",))
def step_without_a_pass_that_sends(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """All passes lie within no_sync(), and step() is called all the same."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        script.loss(model, 2 * step).backward()
        script.loss(model, 2 * step + 1).backward()
    optimizer.step()


@each_step(build=lambda: Net().double(), rounded=("streamed",))
def ranks_add_up_different_numbers_of_passes(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """The last rank has fewer batches left."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        for part in range(2 - script.rank):
            script.loss(model, 3 * step + part).backward()
    script.loss(model, 3 * step + 2).backward()
    optimizer.step()


@with_optimizer()
def the_head_is_replaced(script: Script, model: Any, optimizer: Any) -> None:
    """A new layer that the optimizer does not know is not trained, as in plain torch; the old one has no gradient."""
    script.train(model, optimizer, 2)
    new = nn.Linear(100, 5)
    with torch.no_grad():
        new.weight.copy_(model.head.weight * 2)
        new.bias.zero_()
    model.head = new
    script.train(model, optimizer, 2)


@before_the_step()
def parameters_are_changed_between_backward_and_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Decay by hand, or a projection: in place, under no_grad."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.99)


@with_optimizer(ranks=(1,))
def a_compiled_step(script: Script, model: Any, optimizer: Any) -> None:
    """torch.compile of a function that calls optimizer.step()."""
    # torch's own optimizer, compiled, rounds in another way before torch 2.13.
    compiled = torch.compile(optimizer.step, backend="eager") if script.library else optimizer.step
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        compiled()


class Pictures(nn.Module):
    """A convolution whose memory lies channels last, and a transposed matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(INPUTS, 32, 3, padding=1).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter((torch.randn(288, 40) / 10).t())
        self.small = nn.Parameter((torch.randn(288, 5) / 10).t())

    def forward(self, x: Tensor) -> Tensor:
        x = self.image(x[:, :, None, None].expand(-1, -1, 3, 3)).flatten(1)
        return torch.tanh(x @ self.turned.t()) @ torch.ones(40, 5) + x @ self.small.t()


@with_optimizer(build=Pictures, wrapped=partial(torch.optim.AdamW, lr=1e-2, fused=True))
def memory_that_lies_channels_last_in_a_fused_optimizer(script: Script, model: Any, optimizer: Any) -> None:
    """With one that goes through their memory: an average must lie as its parameter does."""
    script.train(model, optimizer)
