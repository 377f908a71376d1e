"""Parameters that lie in the same memory without being one: trained as in plain torch, or refused."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import resireduce
from resireduce.errors import ConfigError, UsageError
from resireduce.same_memory import overlapping
from tests.worlds import same

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


@pytest.mark.parametrize("by_data", [False, True])
def test_nothing_is_said_where_it_makes_no_difference(by_data: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        distributed(tied(by_data), gradients="kept" if by_data else "streamed").close()


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_updated_before_all_uses_is_refused(frozen: bool) -> None:
    model = tied()
    model[2].weight.requires_grad_(not frozen)
    with pytest.raises(ConfigError, match=r"update: 'in_backward' is not allowed with '0\.weight' and '2\.weight'"):
        distributed(model, **DENSE, update="in_backward")


def test_which_tensors_have_an_element_in_common() -> None:
    flat = torch.arange(60.0)
    rows = {"first": flat[:30].view(5, 6), "second": flat[30:].view(5, 6), "empty": flat[:0]}
    alone = {"like": torch.ones(5, 6), "meta": torch.ones(5, 6, device="meta"), "other": torch.ones(5, device="meta")}
    for disjoint in (rows, alone):
        assert overlapping(disjoint) is None
    assert "all" in (overlapping({"all": flat} | rows) or ())
    assert overlapping({"even": flat[::2], "third": flat[3::3]}) == ("even", "third")
    assert overlapping({"bytes": flat.view(torch.uint8), "last": flat[59:]}) == ("bytes", "last")
    assert overlapping({"like": torch.ones(3)}, {"a": flat, "b": flat}) is None, "none of them is trained"
    assert overlapping({"a": flat}, {"a": flat, "b": flat}) is not None
