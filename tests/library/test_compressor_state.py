"""What a compressor remembers of a tensor: shared out among other ranks, refused where it does not fit, loaded."""

import copy

import pytest
import torch
from torch import Tensor

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.compressors.thresholds import SIDCo
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, loss_of, seeded, train, train_world


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


def test_the_state_of_a_compressor_that_has_none_does_not_fit() -> None:
    _, plain = train(LocalCommunicator(), seeded(Net), steps=1)
    _, other = train(LocalCommunicator(), seeded(Net), steps=1, compressor=SIDCo(0.05))
    for one, state in ((plain, other.residual_state_dict()), (other, plain.residual_state_dict())):
        with pytest.raises(ConfigError, match=r"residual state: 'compressor\..*\.stages' does not fit"):
            one.load_residual_state_dict(state)


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
