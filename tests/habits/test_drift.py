"""What ranks are told: their parameters differ in the first steps, or something else trains the model beside them."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.watchers import PIECE
from tests.threads import LocalWorld
from tests.worlds import Net, loss_of, seeded

MODES: list[dict[str, Any]] = [{"gradients": "kept"}, {"gradients": "streamed"}]
MODES += [{"compressor": "none", "scheme": "none", "update": "in_backward"}]


def told(recwarn: pytest.WarningsRecorder) -> int:
    return sum("no longer the same on all ranks" in str(one.message) for one in recwarn)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("changed", [None, 0, 1])
def test_what_one_rank_alone_changes_after_its_first_step(
    changed: int | None, mode: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    """Later nothing is looked at: it would cost a pass over all parameters in each step."""

    def rank(communicator: Communicator) -> None:
        draw = torch.Generator().manual_seed(communicator.rank)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        wrapped = torch.optim.SGD(model.parameters(), 0.1)
        with resireduce.distribute(model, wrapped, backend=communicator, **mode) as optimizer:
            for step in range(4):
                optimizer.zero_grad()
                model(torch.randn(8, 64, generator=draw)).square().mean().backward()
                optimizer.step()
                if communicator.rank and step == changed:
                    model[2].weight.data[5, 7] += 1e-6

    LocalWorld(2).run(rank)
    assert bool(told(recwarn)) == (changed == 0 and "update" not in mode)


# --- what counts as different ---


def differs(make: Callable[[], Tensor], change: Callable[[Tensor], Tensor | None], recwarn: Any) -> bool:
    """Whether ranks are told that they differ if after the first step one of them does this to a parameter's values."""

    def rank(communicator: Communicator) -> None:
        model = nn.Module()
        model.weight = nn.Parameter(make())
        wrapped = torch.optim.SGD(model.parameters(), 0.0)
        with resireduce.distribute(model, wrapped, "none", "none", backend=communicator) as optimizer:
            for step in range(3):
                (model.weight * 0).abs().sum().backward()
                optimizer.step()
                if step == 0 and communicator.rank:
                    model.weight.data = change(model.weight.data)  # type: ignore[assignment]

    recwarn.clear()
    LocalWorld(2).run(rank)
    return bool(told(recwarn))


def last_bit(values: Tensor) -> Tensor:
    values.view(-1).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize])[-1] += 1
    return values


PLACES = torch.arange(24.0).view(2, 3, 4)
CHANGES: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]] = {
    **{f"a bit of {dtype}": (torch.ones(3, 5, dtype=dtype), last_bit) for dtype in (torch.float64, torch.bfloat16)},
    "the last of many": (torch.ones(300, 1001), last_bit),
    "the last of a row in several pieces": (torch.ones(2, PIECE + 9), last_bit),
    "the only one": (torch.ones(()), last_bit),
    "rows in turn": (PLACES, lambda one: one.roll(1, 0)),
    "columns in turn": (PLACES, lambda one: one.roll(1, 2)),
    "two that are exchanged": (torch.tensor([4.0, 0.0]), lambda one: one.flip(0)),
    "signs": (PLACES + 1, lambda one: -one),
    "twice as much": (PLACES + 1, lambda one: 2 * one),
}


@pytest.mark.parametrize("case", CHANGES)
def test_every_bit_at_its_place_counts(case: str, recwarn: pytest.WarningsRecorder) -> None:
    values, change = CHANGES[case]
    assert differs(values.clone, change, recwarn)


def test_how_values_lie_in_memory_does_not_count(recwarn: pytest.WarningsRecorder) -> None:
    images = torch.randn(4, 3, 5, 5)
    assert not differs(images.clone, lambda one: one.to(memory_format=torch.channels_last), recwarn)
    assert not differs(images.clone, lambda one: torch.stack([one, one + 1], -1)[..., 0], recwarn)
    assert not differs(lambda: torch.empty(0, 3), lambda one: one, recwarn)


GONE = "is gone, and the model is trained on"


def take_step(optimizer: torch.optim.Optimizer, model: nn.Module, rank: int) -> None:
    optimizer.zero_grad()
    loss_of(model, torch.Generator().manual_seed(rank)).backward()
    optimizer.step()


def go_on(communicator: Communicator, model: nn.Module, how: str) -> None:
    """Take a step with an optimizer of the library, and another one when that is gone."""
    plain = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = resireduce.distribute(model, plain, backend=communicator)
    take_step(optimizer, model, communicator.rank)
    if how == "closed":
        optimizer.close()
    del optimizer
    gc.collect()
    if how == "distributed anew":
        plain = resireduce.distribute(model, plain, backend=communicator)
    elif how == "made anew":  # as by a trainer's second fit()
        plain = torch.optim.SGD(model.parameters(), 0.1)
    take_step(plain, model, communicator.rank)
    if how != "distributed anew":
        assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters()), "it is said once"


@pytest.mark.parametrize(
    ("how", "ranks"), [("made anew", 2), ("made anew", 1), ("plain", 2), ("closed", 2), ("distributed anew", 2)]
)
def test_training_that_goes_on_without_averages(how: str, ranks: int, recwarn: pytest.WarningsRecorder) -> None:
    start = seeded(Net)
    LocalWorld(ranks).run(lambda communicator: go_on(communicator, copy.deepcopy(start), how))
    told = [one for one in recwarn if GONE in str(one.message)]
    assert bool(told) == (how in ("made anew", "plain") and ranks > 1)


@pytest.mark.parametrize("by", ["step", "decay", "wrapped", "dropped", "other", "fused", "both", "late"])
def test_another_optimizer_beside_kept_gradients(by: str, recwarn: pytest.WarningsRecorder) -> None:
    """Without a guard in `.grad` that would refuse it."""

    def rank(communicator: Communicator) -> None:
        model = copy.deepcopy(start)
        plain = torch.optim.SGD(model.parameters(), 1e-3)
        optimizer = resireduce.distribute(model, plain, gradients="kept", backend=communicator)
        held = [nn.Parameter(torch.ones(2))] if by == "decay" else list(model.parameters())
        other = torch.optim.AdamW(held, 1e-3, fused=by == "fused")
        if by == "wrapped":  # as Lookahead, or an optimizer of Accelerate
            other.param_groups = plain.param_groups
        for step in range(8):
            (optimizer if by in ("both", "late") else model).zero_grad()
            loss_of(model, torch.Generator().manual_seed(communicator.rank)).backward()
            for parameter in model.parameters() if by in ("decay", "wrapped") else ():
                parameter.data.mul_(0.99)
            if by == "dropped":
                model.zero_grad()
            if by in ("other", "fused", "both") or (by == "late" and step > 3):
                other.step()
            if by in ("step", "decay", "wrapped", "dropped", "both") or (by == "late" and step < 4):
                optimizer.step()
        keep.append((optimizer, other))

    keep: list[object] = []
    start = seeded(Net)
    LocalWorld(2).run(rank)
    told = [one for one in recwarn if "another optimizer takes a step" in str(one.message)]
    assert bool(told) == (by in ("other", "fused", "both", "late"))
