"""Gradients that lie in memory which others use, too: trained as where each has memory of its own."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.core.bucket import overlaps
from tests.threads import LocalWorld
from tests.worlds import same, seeded, take_steps

Join = Callable[[Tensor], Tensor]
LIFETIMES: list[dict[str, object]] = [{}, {"gradients": "kept"}]
SETTINGS = [
    {"compressor": "none", "scheme": "none"},
    {"scheme": "none"},
    {"scheme": "baseline"},
    {"scheme": "w"},
    {"scheme": "w+2d", "residual_dtype": "int8"},
    {"scheme": "2d", "compressor": "fp16"},
    {"scheme": "partial", "compressor": "randomk"},
]


class Places(nn.Module):
    """Adds what it has learned of each place. `own`: in a way that gives its gradient memory of its own."""

    def __init__(self, own: bool):
        super().__init__()
        self.weight, self.own = nn.Parameter(torch.randn(110, 100)), own

    def forward(self, join: Join) -> Tensor:
        return join(self.weight * 1.0 if self.own else self.weight)


class Text(nn.Module):
    """Two kinds of places, of which each gradient is a view: of the other's, and with a batch of one of all before."""

    def __init__(self, own: bool):
        super().__init__()
        self.before = nn.ModuleList(nn.Linear(100, 100) for _ in range(2))
        self.places, self.kinds = Places(own), Places(own)
        self.after = nn.Linear(100, 100)

    def forward(self, x: Tensor, join: Join) -> Tensor:
        for layer in self.before:
            x = layer(x)
        return self.after(torch.tanh(x + (self.places(join) + self.kinds(join))))


class Tokens(nn.Module):
    """A token is some rows of the positions beside it, so that with a batch of one its gradient is some of theirs."""

    def __init__(self, own: bool):
        super().__init__()
        self.token, self.own = nn.Parameter(torch.randn(105, 100)), own
        self.places, self.after = nn.Parameter(torch.randn(110, 100)), nn.Linear(100, 100)

    def forward(self, x: Tensor, join: Join) -> Tensor:
        token, places = (self.token * 1.0, self.places * 1.0) if self.own else (self.token, self.places)
        return self.after(torch.tanh(torch.cat([x[:, :5], token.expand(len(x), -1, -1)], 1) + places[None]))


def trained(communicator: Communicator, model: nn.Module, join: Join, batch: int, **options: object) -> nn.Module:
    model = copy.deepcopy(model)
    wrapped = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    optimizer = resireduce.distribute(model, wrapped, backend=communicator, **{"density": 0.05, **options})  # type: ignore[arg-type]
    source = torch.Generator().manual_seed(communicator.rank)
    take_steps(optimizer, lambda: model(torch.randn(batch, 110, 100, generator=source), join).square().mean(), 4)
    return model


@pytest.mark.parametrize(("lifetime", "batch"), zip(LIFETIMES, (1, 3), strict=True), ids=str)
@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("build", [Text, Tokens])
def test_views_of_others_gradients_are_not_changed(
    build: Callable[[bool], nn.Module], options: dict[str, object], lifetime: dict[str, object], batch: int
) -> None:
    """As where each gradient has memory of its own: parameters are equal bit for bit."""
    starts = [seeded(partial(build, own)) for own in (False, True)]
    joins: list[Join] = [lambda one: one.unsqueeze(0), lambda one: one.view(1, 110, 100), lambda one: one.t().t()[None]]
    for number, join in enumerate(joins):
        act = partial(trained, join=join, batch=batch, **options, **lifetime)
        world = LocalWorld(1 if number else 2)
        found, wanted = (world.run(partial(act, model=start)) for start in starts)
        assert all(same(*pair) and not same(pair[0], starts[0]) for pair in zip(found, wanted, strict=True))


def test_which_tensors_have_an_element_in_common() -> None:
    flat = torch.arange(60.0)
    assert not [*overlaps({"first": flat[:30], "last": flat[30:]}.items())]
    assert [*overlaps({"even": flat[::2], "third": flat[3::3]}.items())] == [("even", "third")]
    assert [*overlaps({"bytes": flat.view(torch.uint8), "last": flat[59:]}.items())] == [("bytes", "last")]
