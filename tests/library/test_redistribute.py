"""A checkpoint of another number of ranks: what would still have been applied to the model is conserved."""

import copy

import pytest
import torch
from torch import Tensor

import resireduce
from resireduce.comm.base import Communicator
from resireduce.compressors.thresholds import SIDCo
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError
from resireduce.scheme import SCHEMES
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, loaded, loss_of, saved, seeded, train_world

CONSERVING = [scheme for scheme in SCHEMES if scheme not in ("d", "2d", "w+2d", "none")]


def mean(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Over the ranks: how much of each residual the model would still be moved by."""
    names = [name for name in states[0] if name.startswith(("full.", "average.", "weighted.", "partial.", "momentum."))]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in names}


def check_conserved(after: list[DistributedOptimizer], before: list[dict[str, Tensor]]) -> None:
    """But for the rounding of sums, which is of the largest summand's size: the ranks' residuals may cancel out."""
    expected, found = mean(before), mean([optimizer.residual_state_dict() for optimizer in after])
    for name, tensor in expected.items():
        largest = max(float(state[name].abs().max()) for state in before)
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=8 * torch.finfo(tensor.dtype).eps * largest)


RANKS = [(3, 1), (1, 3), (3, 2), (2, 3), (4, 2), (2, 2)]
IN_TURN = [(scheme, *ranks) for number, scheme in enumerate(CONSERVING) for ranks in RANKS[number % 2 :: 2]]


@pytest.mark.parametrize(("scheme", "before", "after"), IN_TURN)
def test_the_average_over_the_ranks_is_conserved(scheme: str, before: int, after: int) -> None:
    states = saved(before, scheme=scheme)
    optimizers = loaded(after, states, scheme=scheme)
    assert mean(states) or scheme == "member"
    check_conserved(optimizers, states)
    assert all(optimizer.steps == 3 for optimizer in optimizers)


@pytest.mark.parametrize(("before", "after"), RANKS)
def test_so_is_that_of_velocities(before: int, after: int) -> None:
    states = saved(before, scheme="baseline", compressor="dgc-momentum")
    assert all(state["momentum.first.weight"].any() for state in states)
    check_conserved(loaded(after, states, scheme="baseline", compressor="dgc-momentum"), states)


@pytest.mark.parametrize("scheme", ["2d", "d", "w+2d"])
def test_of_rows_and_columns_the_largest_are_kept(scheme: str) -> None:
    states = saved(2, scheme=scheme)
    (optimizer,) = loaded(1, states, scheme=scheme)
    name = next(name for name in states[0] if name.endswith(".rows")).removesuffix(".rows")
    kept = optimizer.residual_state_dict()[name]
    assert kept.abs().sum() >= 0.5 * max(state[name].abs().sum() for state in states)


def test_states_that_cannot_be_shared_out() -> None:
    states = saved(2, scheme="baseline")
    (optimizer,) = train_world(1, seeded(Net), steps=0, scheme="baseline")[0][1:]
    for given, message in (
        (states[:1], "those of rank 0 of 2 at step 3 are not all of one job"),
        ([], "those of no rank are not all of one job"),
        ([states[0], states[0]], "are not all of one job"),
        ([states[0], {**states[1], "steps": torch.tensor(4)}], "at step 3, rank 1 of 2 at step 4 are not all"),
        (saved(2, scheme="w"), "does not fit this model, scheme"),
    ):
        with pytest.raises(ConfigError, match=message):
            resireduce.redistribute(optimizer, given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"that of rank 0 of 2, this is rank 0 of 1; .*resireduce\.redistribute"):
        optimizer.load_residual_state_dict(states[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows_columns.first.weight", torch.nan),
        ("full.blocks.1.up.weight", torch.inf),
        ("rows_columns.first.weight.rows", 10**6),
        ("steps", -1),
    ],
)
def test_a_damaged_state(name: str, value: float) -> None:
    (state,) = saved(1, scheme="2d")
    damaged = {**state, name: torch.full_like(state[name], value)}
    (optimizer,) = train_world(1, seeded(Net), steps=0, scheme="2d")[0][1:]
    with pytest.raises(ConfigError, match=rf"'{name}' holds (NaN, infinity or )?a number that cannot be"):
        optimizer.load_residual_state_dict(damaged)
    assert optimizer.steps == 0


def stages(optimizer: DistributedOptimizer) -> list[Tensor]:
    return [tensor for name, tensor in optimizer.residual_state_dict().items() if name.endswith(".stages")]


def test_another_number_of_ranks_takes_it_from_the_first_that_it_inherits() -> None:
    states = []
    for number, (_, optimizer) in enumerate(train_world(3, seeded(Net), compressor=SIDCo(0.05), steps=2)):
        states.append(optimizer.residual_state_dict())
        for name in states[-1]:
            if name.endswith(".stages"):
                states[-1][name] = torch.tensor([2.0 + number, 1.0, 0.5])

    def rank(communicator: Communicator) -> list[float]:
        model = copy.deepcopy(start)
        wrapped = torch.optim.SGD(model.parameters(), 0.1)
        optimizer = resireduce.distribute(model, wrapped, backend=communicator, compressor=SIDCo(0.05))
        resireduce.redistribute(optimizer, states)
        return [float(state[0]) for state in stages(optimizer)]

    start = seeded(Net)
    for size, expected in ((2, [2, 3]), (5, [2, 3, 4, 2, 3])):
        assert [set(found) for found in LocalWorld(size).run(rank)] == [{float(one)} for one in expected]


def test_a_state_whose_tensors_are_filled_in_place_is_loaded() -> None:
    """As torch.distributed.checkpoint fills those of the present state."""
    model = seeded(Net)
    optimizer = distributed(model, scheme="w+2d")
    kept = copy.deepcopy(optimizer.residual_state_dict())
    loss_of(model, torch.Generator().manual_seed(0)).backward()
    optimizer.step()
    filled = optimizer.residual_state_dict()
    for name, tensor in filled.items():
        tensor.copy_(kept[name])
    optimizer.load_residual_state_dict(filled)
    found = optimizer.residual_state_dict()
    assert optimizer.steps == 0 and all(torch.equal(found[name], tensor) for name, tensor in kept.items())
