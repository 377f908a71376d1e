"""What goes on beside the optimizer of the library: training without it, and steps of another."""

import copy
import gc

import pytest
import torch
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from tests.threads import LocalWorld
from tests.worlds import Net, loss_of, seeded

OTHERS = ("other", "fused", "zeroed", "both", "late")
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


@pytest.mark.parametrize("by", ["step", "skipped", "decay", "wrapped", *OTHERS])
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
            (optimizer if by in ("zeroed", "both", "late") else model).zero_grad()
            loss_of(model, torch.Generator().manual_seed(communicator.rank)).backward()
            for parameter in model.parameters() if by in ("decay", "wrapped") else ():
                parameter.data.mul_(0.99)
            if by in ("other", "fused", "zeroed", "both") or (by == "late" and step > 3):
                other.step()
            if by in ("step", "decay", "wrapped", "both") or (by in ("skipped", "late") and step < 4 - (by != "late")):
                optimizer.step()
        keep.append((optimizer, other))

    keep: list[object] = []
    start = seeded(Net)
    LocalWorld(2).run(rank)
    assert bool([one for one in recwarn if "another optimizer takes a step" in str(one.message)]) == (by in OTHERS)
