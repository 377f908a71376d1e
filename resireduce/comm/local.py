"""Ranks without a network: this process alone, and ranks that are pretended."""

from collections.abc import Sequence

from torch import Tensor

from resireduce.comm.base import Communicator, Handle, Partition


class LocalCommunicator(Communicator):
    """The only rank: what it sends is what comes back."""

    rank, world_size = 0, 1

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        return Handle(lambda: tensor)

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        return Handle(lambda: [tensor])

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        return Handle(lambda: [tensor])

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        return tensor


class PretendCommunicator(LocalCommunicator):
    """Rank 0 of `world_size` ranks, of which the others send the same: for planning. Nothing is sent."""

    def __init__(self, world_size: int):
        self.world_size = world_size

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Multiply `tensor` by `world_size` when it is waited for, as if all ranks had sent the same."""
        return Handle(lambda: tensor.mul_(self.world_size))

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Return `world_size` copies of the tensor, made at the launch, as a real collective takes its buffer then."""
        gathered = tensor.repeat(self.world_size, 1)
        return Handle(lambda: list(gathered))

    def gather(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        gathered = tensor.repeat(self.world_size)
        return Handle(lambda: gathered)

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        """Return `world_size` copies of the first part of `tensor`, of `sizes[0]` elements, made at the launch."""
        received = tensor[: sizes[0]].repeat(self.world_size, 1)
        return Handle(lambda: list(received))

    def split(self, *partitions: Partition) -> list[Communicator]:
        return [PretendCommunicator(next(len(part) for part in parts if 0 in part)) for parts in partitions]
