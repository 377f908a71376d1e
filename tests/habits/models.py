"""What people do to the model: shared, detached, copied, averaged, compiled, cast."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.habits.script import Net, Refused, Script, each_step, habit, with_optimizer


class Tied(nn.Module):
    """Embedding and output layer are one tensor; a block is used twice; rows of the embedding's gradient are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.wide, self.out = nn.Embedding(150, 100), nn.Linear(100, 100), nn.Linear(100, 150, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x.abs().mul(40).long().clamp(max=149)).mean(1)
        return self.out(torch.tanh(self.wide(torch.tanh(self.wide(x)))))[:, :5]


@with_optimizer(build=Tied)
def tied_and_reused_weights(script: Script, model: Any, optimizer: Any) -> None:
    """One tensor under two names, and a layer that is applied twice."""
    script.train(model, optimizer)


class Detached(Net):
    """Uses the head's weight detached, and the first block's through .data, before they are used properly."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + 0.1 * torch.sin(x) @ self.blocks[0].wide.weight.detach()
        x = x + 0.1 * torch.sin(x) @ self.blocks[1].wide.weight.data
        x = x + 0.1 * torch.sin(x @ self.head.weight.detach().t()) @ self.head.weight.detach()
        return self.head(self.blocks(x))


@with_optimizer(build=Detached)
def weights_that_are_used_detached_earlier(script: Script, model: Any, optimizer: Any) -> None:
    """In the graph they are constants, which must not change before the backward pass is over."""
    script.train(model, optimizer, 4)


@with_optimizer(build=Detached, settings={"compressor": "none"})
def weights_that_are_used_detached_without_compression(script: Script, model: Any, optimizer: Any) -> None:
    """The same, where every tensor is sent as it is."""
    script.train(model, optimizer, 4)


@habit()
def a_target_network(script: Script) -> list[nn.Module]:
    """A copy follows slowly: updated in place from the parameters, after each step."""
    model = script.net()
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = script.sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        x, _ = script.batch(step)
        (model(x) - target(x.flip(0))).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
    return [model, target]


@with_optimizer(build=lambda: _normed(Net()))
def weight_normalisation(script: Script, model: Any, optimizer: Any) -> None:
    """A parametrisation: norm and direction are the parameters."""
    script.train(model, optimizer)


def _normed(model: nn.Module) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        weight_norm(block.wide)
    return model


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
def an_average_of_the_weights_by_torch(script: Script, model: Any, optimizer: Any) -> Any:
    """torch.optim.swa_utils.AveragedModel."""
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(3):
        script.train(model, optimizer, range(step, step + 1))
        average.update_parameters(model)
    return average.module


@each_step()
def weights_are_clamped_after_the_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """p.data.clamp_, as WGAN does."""
    script.train(model, optimizer, range(step, step + 1))
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


@with_optimizer()
def parameters_get_new_memory(script: Script, model: Any, optimizer: Any) -> None:
    """p.data = p.data.clone(), as when parameters are flattened, or offloaded and back."""
    script.train(model, optimizer, 1)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    script.train(model, optimizer, range(1, 3))


@with_optimizer()
def the_best_weights_are_loaded_again(script: Script, model: Any, optimizer: Any) -> None:
    """model.load_state_dict in the middle of a run."""
    script.train(model, optimizer, 1)
    best = copy.deepcopy(model.state_dict())
    script.train(model, optimizer, 2)
    model.load_state_dict(best)
    script.train(model, optimizer, 2)


@with_optimizer(ranks=(1,))
def a_compiled_model(script: Script, model: Any, optimizer: Any) -> None:
    """torch.compile of the whole model, after it was distributed."""
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(3):
        optimizer.zero_grad()
        script.loss(compiled, step).backward()
        optimizer.step()


@with_optimizer(both=Refused(r"double|float64|dtype"))
def the_model_is_cast_later(script: Script, model: Any, optimizer: Any) -> None:
    """model.double() after it was distributed."""
    script.train(model, optimizer, 1)
    model.double()
    optimizer.zero_grad()
    model(script.batch(1)[0].double()).square().mean().backward()
    optimizer.step()


@with_optimizer(both=Refused(r"half|float16|bfloat16|dtype"))
def the_model_is_halved_before_the_first_step(script: Script, model: Any, optimizer: Any) -> None:
    """model.bfloat16() after it was distributed."""
    model.bfloat16()
    model(script.batch(1)[0].bfloat16()).square().mean().backward()
    optimizer.step()


@each_step()
def the_model_is_moved_to_where_it_is(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """model.to("cpu"), model.float(), model.train() within the loop."""
    model.to("cpu").float().train()
    script.train(model, optimizer, range(step, step + 1))
