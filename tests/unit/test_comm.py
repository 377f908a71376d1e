"""Communicators: the local world, and errors that must not hang."""

import pytest
import torch

from resireduce.comm.local import LocalCommunicator, LocalWorld
from resireduce.errors import UsageError


def test_collectives_of_three_ranks() -> None:
    def rank(communicator: LocalCommunicator) -> tuple[list[float], list[list[float]], float]:
        mine = torch.tensor([1.0, 2.0]) * (communicator.rank + 1)
        gathered = communicator.all_gather(mine, "gather")
        summed = communicator.all_reduce(mine.clone(), "sum")
        broadcast = communicator.broadcast_(torch.tensor(float(communicator.rank) + 5), "start")
        return summed.wait().tolist(), gathered.wait().tolist(), broadcast.item()

    for summed, gathered, broadcast in LocalWorld(3).run(rank):
        assert summed == [6, 12] and gathered == [[1, 2], [2, 4], [3, 6]] and broadcast == 5


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
