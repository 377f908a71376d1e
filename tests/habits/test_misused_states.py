"""States that are saved and loaded by mistake: at the wrong time, in part, damaged, or of other settings."""

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import resireduce
from resireduce.comm.base import Communicator
from resireduce.compressors.base import Compressor
from resireduce.compressors.dgc import DGC
from resireduce.compressors.signs import Signum
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError, UsageError
from resireduce.grouping import Grouping
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, loss_of, reloaded, seeded


def loss(model: nn.Module) -> torch.Tensor:
    return loss_of(model, torch.Generator().manual_seed(0))


def test_residuals_that_were_stored_in_another_precision() -> None:
    saved = distributed(seeded(Net), residual_dtype="float8_e4m3").residual_state_dict()
    with pytest.raises(ConfigError, match="does not fit this model, scheme, compressor and residual_dtype"):
        distributed(seeded(Net), residual_dtype="int8").load_residual_state_dict(saved)


def both_ways(holder: DistributedOptimizer, state: dict[str, torch.Tensor], said: str) -> None:
    """Loaded by its own rank or shared out, a state is refused before anything has changed."""
    before = copy.deepcopy(holder.residual_state_dict())
    for act in (holder.load_residual_state_dict, lambda one: resireduce.redistribute(holder, [one])):
        with pytest.raises(ConfigError, match=f"^residual state: {said}"):
            act(reloaded(state))
    after = holder.residual_state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (DGC(0.05, momentum_factor=0.9), Signum()),
        (DGC(0.05, momentum_factor=0.9), DGC(0.05, momentum_factor=0.5)),
        (DGC(0.05, momentum_factor=0.9, coded=True), Signum(0.9)),
    ],
)
def test_velocities_that_another_compressor_saved(theirs: Compressor, ours: Compressor) -> None:
    state = distributed(seeded(Net), compressor=theirs).residual_state_dict()
    both_ways(distributed(seeded(Net), compressor=ours), state, "'made_by' is another one here")
    same = [DGC(0.02, momentum_factor=0.9), DGC(0.02, momentum_factor=0.9, coded=True)]
    for one in same:  # what they remember means the same
        distributed(seeded(Net), compressor=one).load_residual_state_dict(state)
    del state["made_by"]  # of an earlier version
    distributed(seeded(Net), compressor=ours).load_residual_state_dict(state)


@pytest.mark.parametrize("scheme", ["a", "w", "member"])
def test_residuals_of_groups_with_other_members(scheme: str) -> None:
    def grouped(*pairs: tuple[int, int]) -> DistributedOptimizer:
        groups = Grouping(tuple(tuple(f"blocks.{i}.up.weight" for i in pair) for pair in pairs))
        return distributed(seeded(partial(Net, blocks=4)), scheme=scheme, groups=groups)

    state, ours = grouped((0, 2), (1, 3)).residual_state_dict(), grouped((0, 3), (1, 2))
    both_ways(ours, state, r"'members\.blocks\.0\.up\.weight' is another one")
    for first in (0, 1):  # of an earlier version
        del state[f"members.blocks.{first}.up.weight"]
    ours.load_residual_state_dict(state)


def test_elements_that_another_device_has_drawn() -> None:
    """On the meta device, which stands for a GPU, they are drawn as on no other."""
    state, optimizer = (
        distributed(seeded(Net).to("meta"), scheme="partial").residual_state_dict(),
        distributed(seeded(Net), scheme="partial"),
    )
    state = {
        name: tensor if tensor.device.type == "cpu" else torch.zeros(tensor.shape) for name, tensor in state.items()
    }
    both_ways(optimizer, state, r"'places\..*' is another one here")


def test_states_are_saved_and_loaded_between_steps() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    state = {name: tensor.clone() for name, tensor in optimizer.residual_state_dict().items()}
    loss(model).backward()
    for act in (
        optimizer.residual_state_dict,
        lambda: optimizer.load_residual_state_dict(state),
        lambda: resireduce.redistribute(optimizer, [state]),
    ):
        with pytest.raises(UsageError, match=r"between backward\(\) and step\(\).*call step\(\)"):
            act()
    optimizer.step()
    optimizer.load_residual_state_dict(state)


@pytest.mark.parametrize("step", [-1, 2.5, "3"])
def test_a_step_that_cannot_be(step: Any) -> None:
    with pytest.raises(ConfigError, match=r"^step: .* is not allowed; give a number of steps, 0 or more"):
        distributed(seeded(Net)).start_at(step)


def with_momentum(model: nn.Module, compressor: str) -> DistributedOptimizer:
    return distributed(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), compressor=compressor)


@pytest.mark.parametrize("compressor", ["topk", "none"])
@pytest.mark.parametrize(
    ("loads", "forgotten"),
    [
        ("", False),
        ("optimizer", True),
        ("wrapped", True),
        ("optimizer residuals", False),
        ("optimizer start_at", False),
    ],
)
def test_residuals_that_are_forgotten_at_a_restart(loads: str, forgotten: bool, compressor: str) -> None:
    model = seeded(Net)
    with with_momentum(model, compressor) as saved:
        loss(model).backward()
        saved.step()
        state, residuals = saved.state_dict(), saved.residual_state_dict()
    optimizer = with_momentum(model, compressor)
    acts = {
        "optimizer": lambda: optimizer.load_state_dict(state),
        "wrapped": lambda: optimizer.wrapped.load_state_dict(state),
        "residuals": lambda: optimizer.load_residual_state_dict(residuals),
        "start_at": lambda: optimizer.start_at(0),
    }
    for act in loads.split():
        acts[act]()
    told = [forgotten_in(optimizer, model) for _ in range(2)]
    assert told == [forgotten and compressor == "topk", False]


def forgotten_in(optimizer: DistributedOptimizer, model: nn.Module) -> bool:
    """Take a step; return whether it warns of residuals that were not loaded."""
    loss(model).backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    return any("but not the residuals" in str(one.message) for one in caught)


@pytest.mark.parametrize(
    "options",
    [
        {"compressor": "randomk"},
        {"compressor": "adtopk-interleaved"},
        {"compressor": "adtopk-interleaved", "gradients": "kept"},
        {"compressor": "adtopk-interleaved", "hierarchy": [[0], [1]]},
        {"compressor": "ok-topk"},
        {"density": lambda step: 0.01 * (step + 1)},
        {"warm_up_steps": 2},
    ],
)
@pytest.mark.filterwarnings("ignore:hierarchy")
def test_a_state_that_is_loaded_on_one_rank_alone(options: dict[str, object]) -> None:
    """Random choices that all ranks must make alike follow from the number of the step."""
    start = seeded(Net)

    def rank(communicator: Communicator) -> None:
        model = copy.deepcopy(start)
        optimizer = distributed(model, backend=communicator, **options)
        optimizer.start_at(3 * communicator.rank)
        loss(model).backward()
        with pytest.raises(
            UsageError, match=r"step is number [03] here, and another one on other ranks.* Call it on all"
        ):
            optimizer.step()

    LocalWorld(2).run(rank)


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize("momentum", [True, False])
def test_residuals_that_are_forgotten_where_a_state_is_loaded_in_place(momentum: bool, loads: bool) -> None:
    """As torch.distributed.checkpoint does: it takes a step for an empty state, fills that, and has it loaded again."""
    model = seeded(Net)
    parameters = list(model.parameters())
    wrapped = torch.optim.SGD(parameters, 0.1, momentum=0.9) if momentum else torch.optim.AdamW(parameters)
    optimizer = distributed(model, wrapped)
    state = get_optimizer_state_dict(model, optimizer)
    for held in state["state"].values() if loads else ():
        for tensor in held.values():  # type: ignore[union-attr]
            tensor.fill_(0.1)
    set_optimizer_state_dict(model, optimizer, state)
    assert forgotten_in(optimizer, model) == loads
