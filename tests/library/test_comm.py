"""Communicators: the local world, and errors that must not hang."""

import pytest
import torch
from torch import nn

from resireduce.comm.local import LocalCommunicator
from resireduce.errors import UsageError
from resireduce.grouping import is_small
from tests.processes import Checks
from tests.ranks.test_gloo import check_exchange, check_ragged
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, seeded


@pytest.mark.parametrize("check", [check_ragged, check_exchange])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_collectives_are_those_of_processes(world_size: int, check: Checks) -> None:
    LocalWorld(world_size).run(check)


def test_collectives_in_different_order_are_found() -> None:
    def rank(communicator: LocalCommunicator) -> None:
        names = ["a", "b"] if communicator.rank == 0 else ["b", "a"]
        for handle in [communicator.all_reduce(torch.zeros(1), name) for name in names]:
            handle.wait()

    with pytest.raises(UsageError, match=r"on one rank and .* on rank"):
        LocalWorld(2).run(rank)


def test_the_failure_of_one_rank_is_what_is_raised() -> None:
    def rank(communicator: LocalCommunicator) -> None:
        if communicator.rank == 1:
            raise KeyError("of rank 1")
        communicator.all_reduce(torch.zeros(1), "never met").wait()

    with pytest.raises(KeyError, match="of rank 1"):
        LocalWorld(2).run(rank)


@pytest.mark.parametrize("compressor", ["topk", "none"])
def test_small_tensors_travel_together(compressor: str) -> None:
    with distributed(start := seeded(Net), compressor=compressor) as optimizer:
        small = {name for name, parameter in start.named_parameters() if is_small(parameter)}
        assert len(small) == 11 and any(small <= set(names) for names in optimizer.messages)


def test_messages_of_small_tensors_are_bounded_and_of_one_kind() -> None:
    """Vectors, 28 MB of them and one in float64, which is among them."""
    model = nn.ParameterList(torch.zeros(9_999, dtype=torch.float64 if i == 300 else None) for i in range(701))
    with distributed(model, compressor="none", scheme="none") as optimizer:
        messages = optimizer.messages
    assert sorted(int(name) for names in messages for name in names) == list(range(701)) and ["300"] in messages
    assert len(messages) < 200 and max(map(len, messages)) * 9_999 * 4 <= 25 << 20
