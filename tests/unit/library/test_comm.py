"""Communicators: the local world, and errors that must not hang."""

import pytest
import torch
from torch import Tensor

from resireduce.comm.base import Handle
from resireduce.comm.local import LocalCommunicator, LocalWorld
from resireduce.core.queue import BUCKET_BYTES, arrange, buckets
from resireduce.core.slot import Slot
from resireduce.errors import UsageError
from resireduce.grouping import is_small
from resireduce.refusals import guards
from tests.dist.test_gloo import check_exchange
from tests.worlds import Net, seeded, train


def test_collectives_of_three_ranks() -> None:
    def rank(communicator: LocalCommunicator) -> tuple[list[float], list[list[float]], float]:
        mine = torch.tensor([1.0, 2.0]) * (communicator.rank + 1)
        gathered = communicator.all_gather(mine, "gather")
        summed = communicator.all_reduce(mine.clone(), "sum")
        broadcast = communicator.broadcast_(torch.tensor(float(communicator.rank) + 5), "start")
        return summed.wait().tolist(), [row.tolist() for row in gathered.wait()], broadcast.item()

    for summed, gathered, broadcast in LocalWorld(3).run(rank):
        assert summed == [6, 12] and gathered == [[1, 2], [2, 4], [3, 6]] and broadcast == 5


def test_ranks_may_send_different_numbers_of_elements() -> None:
    def rank(communicator: LocalCommunicator) -> list[list[int]]:
        mine = torch.full((3 * communicator.rank,), communicator.rank)
        return [row.tolist() for row in communicator.all_gather(mine, "ragged", equal_sizes=False).wait()]

    assert LocalWorld(3).run(rank) == [[[], [1] * 3, [2] * 6]] * 3


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_send_each_rank_what_is_for_it(world_size: int) -> None:
    LocalWorld(world_size).run(check_exchange)


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


class _Counting(LocalCommunicator):
    """Remembers what was launched."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[tuple[str, int]] = []

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        self.launched.append((name, tensor.numel()))
        return super().all_reduce(tensor, name)


@pytest.mark.parametrize("compressor", ["topk", "none"])
def test_small_tensors_travel_together(compressor: str) -> None:
    communicator, start = _Counting(), seeded(Net)
    train(communicator, start, steps=1, compressor=compressor)
    small = [p for p in start.parameters() if is_small(p)]
    assert len(small) == 11
    assert [numel for _, numel in communicator.launched].count(sum(p.numel() for p in small)) == 1
    large = 0 if compressor == "topk" else len(list(start.parameters())) - len(small)
    assert len(communicator.launched) == large + 2, "and one message that says which gradients there were"


def test_messages_of_small_tensors_are_bounded_and_of_one_kind() -> None:
    def slot(index: int, numel: int, dtype: torch.dtype = torch.float32, small: bool = True) -> Slot:
        return Slot(
            index,
            str(index),
            torch.nn.Parameter(torch.zeros(numel, dtype=dtype)),
            dense=True,
            small=small,
            guard=guards({"": torch.zeros(numel, dtype=dtype)})[""],
        )

    most = BUCKET_BYTES // 4
    order = [slot(0, most // 2), slot(1, 10, small=False), slot(2, most // 2), slot(3, 1), slot(4, 1, torch.float64)]
    messages = list(buckets(order))
    assert [[s.index for s in bucket] for bucket in messages] == [[1], [0, 2], [3], [4]]
    assert list(arrange(messages, order)) == messages
    other = [order[index] for index in (3, 2, 4, 1, 0)]
    assert [[s.index for s in bucket] for bucket in arrange(messages, other)] == [[3], [1], [4], [0, 2]]
