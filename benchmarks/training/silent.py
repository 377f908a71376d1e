"""Ranks that send nothing: their steps take time for computation, but none for messages."""

from collections.abc import Sequence

from torch import Tensor

from resireduce.comm.base import Communicator, Deferred, Partition, Polled


class Silent(Communicator):
    """One rank of `world_size` that takes the others' part of each collective to be equal to its own.

    Sums are this rank's own tensors, so training with it is useful only for timing.
    """

    def __init__(self, world_size: int):
        self.rank, self.world_size = 0, world_size

    def split(self, *partitions: Partition) -> list[Communicator]:
        """Return a silent communicator of as many ranks as the first part of each of `partitions` has."""
        return [Silent(len(parts[0])) for parts in partitions]

    def all_reduce(self, tensor: Tensor, name: str) -> Polled[Tensor]:
        """Return a handle whose result is `tensor` as it is."""
        return Deferred(lambda: tensor)

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Polled[Sequence[Tensor]]:
        """Return a handle whose result is `tensor`, once for each rank."""
        return Deferred(lambda: [tensor] * self.world_size)

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Return `tensor` as it is."""
        return tensor
