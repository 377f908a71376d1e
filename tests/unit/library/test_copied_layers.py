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


def distributed(layer: nn.Module, **options: Any) -> Any:
    given: dict[str, Any] = {"scheme": "baseline", "backend": "local", "slices": 8192, **options}
    optimizer = resireduce.distribute(layer, torch.optim.SGD(layer.parameters(), 0.1), **given)
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


def by_dict(layer: Any) -> Any:
    """A copy of all attributes, as learn2learn makes; its weights are computed ones."""
    twin = type(layer).__new__(type(layer))
    twin.__dict__ = {**vars(layer), "_parameters": {name: 3 * one for name, one in layer._parameters.items()}}
    return twin


def by_replication(layer: Any) -> Any:
    """As `nn.DataParallel` makes them, whose weights are attributes."""
    twin = layer._replicate_for_data_parallel()
    for name, one in layer._parameters.items():
        setattr(twin, name, 3 * one)
    return twin


def by_subclass(layer: Any) -> Any:
    """As higher makes them, of a class with a forward that puts the weights in."""

    class Inner(type(layer)):  # type: ignore[misc]
        def __init__(self) -> None:
            nn.Module.__init__(self)

        def forward(self, x: Tensor) -> Tensor:
            self.__dict__["_parameters"] = {name: 3 * one for name, one in layer._parameters.items()}
            return super().forward(x)

    twin = Inner()
    for name in vars(layer).keys() - vars(twin).keys():
        setattr(twin, name, getattr(layer, name))
    return twin


@pytest.mark.filterwarnings("ignore:the gradient of 'weight' came whole")
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("copied", [by_dict, by_replication, by_subclass])
def test_a_copy_of_all_attributes_computes_and_trains_with_the_weight_that_it_was_given(
    copied: Callable[[Any], Any], make: Callable[[], Any], hooked: bool
) -> None:
    layer = make()
    inputs, plain = INPUTS[type(layer)](), copy.deepcopy(layer)
    expected = 3 * plain(inputs)
    expected.square().sum().backward()
    optimizer = distributed(layer, density=1.0)
    twin = copied(layer)
    assert vars(twin)["forward"].__self__ is layer
    if hooked:
        twin.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(layer(inputs), expected / 3)
    torch.testing.assert_close(twin(inputs), expected)
    twin(inputs).square().sum().backward()
    optimizer.step()
    for mine, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs - 0.1 * theirs.grad, rtol=1e-4, atol=1e-4)
    optimizer.close()
    torch.testing.assert_close(twin(inputs), 3 * layer(inputs) if copied is by_subclass else expected)
