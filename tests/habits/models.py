"""What people do to the model: shared, detached, copied, averaged, compiled, cast."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.habits.script import Net, Refused, Script, habit


class Tied(nn.Module):
    """Embedding and output layer are one tensor; a block is used twice; rows of the embedding's gradient are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.wide, self.out = nn.Embedding(150, 100), nn.Linear(100, 100), nn.Linear(100, 150, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x.abs().mul(40).long().clamp(max=149)).mean(1)
        return self.out(torch.tanh(self.wide(torch.tanh(self.wide(x)))))[:, :5]


@habit(build=Tied)
def tied_and_reused_weights(script: Script) -> nn.Module:
    """One tensor under two names, and a layer that is applied twice."""
    model = script.net()
    script.train(model, script.sgd(model))
    return model


class Detached(Net):
    """Uses the head's weight detached, and the first block's through .data, before they are used properly."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + 0.1 * torch.sin(x) @ self.blocks[0].wide.weight.detach()
        x = x + 0.1 * torch.sin(x) @ self.blocks[1].wide.weight.data
        x = x + 0.1 * torch.sin(x @ self.head.weight.detach().t()) @ self.head.weight.detach()
        return self.head(self.blocks(x))


@habit(build=Detached)
def weights_that_are_used_detached_earlier(script: Script) -> nn.Module:
    """In the graph they are constants, which must not change before the backward pass is over."""
    model = script.net()
    script.train(model, script.sgd(model), 4)
    return model


@habit(build=Detached)
def weights_that_are_used_detached_without_compression(script: Script) -> nn.Module:
    """The same, where every tensor is sent as it is."""
    model = script.net()
    script.train(model, script.sgd(model, compressor="none"), 4)
    return model


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


@habit(build=lambda: _normed(Net()))
def weight_normalisation(script: Script) -> nn.Module:
    """A parametrisation: norm and direction are the parameters."""
    model = script.net()
    script.train(model, script.sgd(model))
    return model


def _normed(model: nn.Module) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        weight_norm(block.wide)
    return model


@habit()
def an_average_of_the_weights_by_deepcopy(script: Script) -> list[nn.Module]:
    """EMA: the copy is made after the model was distributed, once between backward() and step()."""
    model = script.net()
    optimizer = script.sgd(model)
    average = copy.deepcopy(model)
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        before = copy.deepcopy(model)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
    return [model, average, before]


@habit()
def an_average_of_the_weights_by_torch(script: Script) -> list[nn.Module]:
    """torch.optim.swa_utils.AveragedModel."""
    model = script.net()
    optimizer = script.sgd(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(3):
        script.train(model, optimizer, range(step, step + 1))
        average.update_parameters(model)
    return [model, average.module]


@habit()
def weights_are_clamped_after_the_step(script: Script) -> nn.Module:
    """p.data.clamp_, as WGAN does."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        script.train(model, optimizer, range(step, step + 1))
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)
    return model


@habit()
def parameters_get_new_memory(script: Script) -> nn.Module:
    """p.data = p.data.clone(), as when parameters are flattened, or offloaded and back."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 1)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    script.train(model, optimizer, range(1, 3))
    return model


@habit()
def the_best_weights_are_loaded_again(script: Script) -> nn.Module:
    """model.load_state_dict in the middle of a run."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 1)
    best = copy.deepcopy(model.state_dict())
    script.train(model, optimizer, 2)
    model.load_state_dict(best)
    script.train(model, optimizer, 2)
    return model


@habit(ranks=(1,))
def a_compiled_model(script: Script) -> nn.Module:
    """torch.compile of the whole model, after it was distributed."""
    model = script.net()
    optimizer = script.sgd(model)
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(3):
        optimizer.zero_grad()
        script.loss(compiled, step).backward()
        optimizer.step()
    return model


@habit(both=Refused(r"double|float64|dtype"))
def the_model_is_cast_later(script: Script) -> nn.Module:
    """model.double() after it was distributed."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 1)
    model.double()
    optimizer.zero_grad()
    model(script.batch(1)[0].double()).square().mean().backward()
    optimizer.step()
    return model


@habit(both=Refused(r"half|float16|bfloat16|dtype"))
def the_model_is_halved_before_the_first_step(script: Script) -> nn.Module:
    """model.bfloat16() after it was distributed."""
    model = script.net()
    optimizer = script.sgd(model)
    model.bfloat16()
    model(script.batch(1)[0].bfloat16()).square().mean().backward()
    optimizer.step()
    return model


@habit()
def the_model_is_moved_to_where_it_is(script: Script) -> nn.Module:
    """model.to("cpu"), model.float(), model.train() within the loop."""
    model = script.net()
    optimizer = script.sgd(model)
    for step in range(3):
        model.to("cpu").float().train()
        script.train(model, optimizer, range(step, step + 1))
    return model
