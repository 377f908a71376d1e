"""Copies of layers that make gradients row by row: each computes with its own weight, by the forward of its class."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce


class Wide(nn.Linear):
    """A subclass, which is copied as its base is."""


INPUTS: dict[type[nn.Module], Callable[[], Tensor]] = {
    nn.Linear: lambda: torch.ones(2, 104),
    Wide: lambda: torch.ones(2, 104),
    nn.Embedding: lambda: torch.arange(8),
    nn.Conv2d: lambda: torch.ones(2, 40, 5, 5),
}
LAYERS: list[Callable[[], Any]] = [
    lambda: nn.Linear(104, 104),
    lambda: Wide(104, 104),
    lambda: nn.Embedding(200, 104),
    lambda: nn.Conv2d(40, 40, 3),
]


def distributed(layer: nn.Module) -> Any:
    optimizer = resireduce.distribute(
        layer, torch.optim.SGD(layer.parameters(), 0.1), "baseline", backend="local", slices=8192
    )
    assert "forward" in vars(layer), "its gradients are made row by row"
    return optimizer


@pytest.mark.parametrize("make", LAYERS)
def test_a_shallow_copy_computes_with_the_weight_that_it_is_given(make: Callable[[], Any]) -> None:
    layer = make()
    optimizer = distributed(layer)
    twin = copy.copy(layer)
    twin._parameters = {name: nn.Parameter(torch.zeros_like(one)) for name, one in layer._parameters.items()}
    inputs = INPUTS[type(layer)]()
    assert not twin(inputs).any() and layer(inputs).any()
    twin(inputs).sum().backward()
    assert twin.weight.grad.any() and layer.weight.grad is None
    optimizer.close()


@pytest.mark.parametrize("make", LAYERS)
def test_copies_are_plain_layers_and_the_layer_stays_as_it_is(make: Callable[[], Any]) -> None:
    layer = make()
    layer.note = "mine"
    optimizer = distributed(layer)
    for other in (copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is type(layer) and other.note == "mine" and "forward" not in vars(other)
        assert torch.equal(other.weight, layer.weight) and other.extra_repr() == layer.extra_repr()
    layer(INPUTS[type(layer)]()).sum().backward()
    optimizer.step()
    optimizer.close()
    assert vars(copy.copy(layer)).keys() == vars(layer).keys()


def test_a_forward_of_ones_own_is_copied() -> None:
    layer = nn.Linear(104, 104)
    distributed(layer).close()
    layer.forward = abs  # type: ignore[assignment]
    assert copy.copy(layer).forward is abs
