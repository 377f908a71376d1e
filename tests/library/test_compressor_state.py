"""What a compressor remembers of a tensor: counted, saved, and as it was after a step that was not taken."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import resireduce
from resireduce.comm.base import Communicator
from resireduce.compressors.base import State
from resireduce.compressors.thresholds import SIDCo
from resireduce.compressors.topk import TopK
from resireduce.core.messages import Payload
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.grouping import is_small
from resireduce.plan import plan
from resireduce.planning.memory import itemise_states, measure_states
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, loss_of, seeded, train_world


@dataclass(frozen=True)
class Rotating(TopK):
    """Top-k of one half of the tensor after the other: what is sent depends on how often it was called."""

    def state(self, shape: torch.Size, like: Tensor) -> State:
        return {"calls": torch.zeros((), dtype=torch.int64, device=like.device)}

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        first = 0 if grad.is_meta or state["calls"] % 2 == 0 else grad.numel() // 2
        state["calls"].add_(1)
        return self.packed(grad, self.select(grad.view(-1)[first:], name, step) + first)


def calls(optimizer: DistributedOptimizer) -> dict[str, int]:
    held = optimizer.residual_state_dict()
    return {name: int(tensor) for name, tensor in held.items() if name.endswith(".calls")}


def stages(optimizer: DistributedOptimizer) -> list[Tensor]:
    return [tensor for name, tensor in optimizer.residual_state_dict().items() if name.endswith(".stages")]


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_it_is_planned_listed_and_counted_to_the_byte(gradients: str) -> None:
    options = {"compressor": Rotating(0.05), "scheme": "w+2d", "gradients": gradients}
    planned, without = (plan(Net, world_size=2, **options | more) for more in ({}, {"compressor": TopK(0.05)}))
    for _, optimizer in train_world(2, seeded(Net), steps=2, **options):
        states = measure_states(optimizer).as_dict()
        assert states == {key: planned[key] for key in states}
        listed = [item for item in itemise_states(optimizer) if item.part == "compressor.calls"]
        assert {item.name for item in listed} == {
            name for name, one in seeded(Net).named_parameters() if not is_small(one)
        }
        assert planned["residuals"] - without["residuals"] == 8 * len(listed)


def test_where_a_tensor_has_no_gradient_it_stays() -> None:
    """On all ranks of one that none has used, and on the rank that has not used what another one sends."""
    start = seeded(Net)

    def rank(communicator: Communicator) -> dict[str, int]:
        model = copy.deepcopy(start)
        optimizer = distributed(model, backend=communicator, compressor=Rotating(0.05))
        used = [model.head.weight, model.first.weight][: 2 - communicator.rank]
        sum(one.square().sum() for one in used).backward()
        optimizer.step()
        return {name: count for name, count in calls(optimizer).items() if count}

    assert LocalWorld(2).run(rank) == [{"compressor.first.weight.calls": 1}, {}]


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
