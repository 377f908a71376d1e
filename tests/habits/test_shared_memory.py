"""Gradients and parameters that lie in memory which others use, too: trained as in plain torch, or refused."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError, UsageError
from resireduce.same_memory import overlapping
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


DENSE = {"compressor": "none"}
ALL_SENT = {"density": 1.0}


def tied(by_data: bool | None = True) -> nn.Sequential:
    """None: not tied yet."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(104, 104), nn.ReLU(), nn.Linear(104, 104), nn.ReLU(), nn.Linear(104, 10))
    if by_data:
        tie(model)
    elif by_data is not None:
        model[2].weight = model[0].weight
    return model


def tie(model: nn.Sequential) -> None:
    model[2].weight.data = model[0].weight.data


def distributed(model: nn.Module, **options: Any) -> Any:
    wrapped = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.5)
    return resireduce.distribute(model, wrapped, "baseline", backend="local", **options)


def train(model: nn.Module, optimizer: Any) -> nn.Module:
    source = torch.Generator().manual_seed(1)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 104, generator=source)), torch.arange(8)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("options", [DENSE, ALL_SENT, ALL_SENT | {"max_grad_norm": 1e9}])
def test_streamed_updates_wait_until_both_averages_are_there(options: dict[str, Any]) -> None:
    plain = tied()
    train(plain, torch.optim.AdamW(plain.parameters(), 0.01, weight_decay=0.5))
    model = tied()
    with pytest.warns(UserWarning, match=r"'0\.weight' and '2\.weight' are two parameters in the same memory"):
        optimizer = distributed(model, **options)
    assert same(train(model, optimizer), plain)


@pytest.mark.parametrize("options", [DENSE, ALL_SENT, {**ALL_SENT, "gradients": "kept"}])
def test_a_model_that_is_tied_later(options: dict[str, Any]) -> None:
    plain, model = tied(by_data=None), tied(by_data=None)
    other = torch.optim.AdamW(plain.parameters(), 0.01, weight_decay=0.5)
    optimizer = distributed(model, **options)
    for one, stepping in ((plain, other), (model, optimizer)):
        train(one, stepping)
        tie(one)
    assert same(train(plain, other), plain)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert same(train(model, optimizer), plain)
    text = "'0.weight' and '2.weight' are two parameters in the same memory"
    assert [str(one.message).startswith(text) for one in said] == [True] * ("gradients" not in options)
    assert {one.filename for one in said} <= {__file__}, "the script's own line, and not torch's wrapper of step()"


def test_a_model_that_is_tied_later_where_updates_come_one_by_one() -> None:
    model = tied(by_data=None)
    optimizer = distributed(model, **DENSE, update="in_backward")
    train(model, optimizer)
    tie(model)
    with pytest.raises(UsageError, match=r"'0\.weight' and '2\.weight' were given the same memory after"):
        train(model, optimizer)
    with pytest.raises(UsageError):
        optimizer.step()


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_updated_before_all_uses_is_refused(frozen: bool) -> None:
    model = tied()
    model[2].weight.requires_grad_(not frozen)
    with pytest.raises(ConfigError, match=r"update: 'in_backward' is not allowed with '0\.weight' and '2\.weight'"):
        distributed(model, **DENSE, update="in_backward")


def test_which_tensors_have_an_element_in_common() -> None:
    flat = torch.arange(60.0)
    assert overlapping({"even": flat[::2], "odd": flat[1::2]}) is None
    assert overlapping({"even": flat[::2], "third": flat[3::3]}) == ("even", "third")
    assert overlapping({"bytes": flat.view(torch.uint8), "last": flat[59:]}) == ("bytes", "last")
