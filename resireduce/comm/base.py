"""The interface of communicators."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from resireduce.errors import ConfigError

T_co = TypeVar("T_co", covariant=True)
Partition = tuple[tuple[int, ...], ...]
"""All ranks of a communicator, each in one part, ascending within a part."""


@dataclass(frozen=True)
class Handle(Generic[T_co]):
    """A collective that has been launched."""

    wait: Callable[[], T_co]
    """Waits for the result, and returns it."""
    is_ready: Callable[[], bool] = lambda: True
    """Says whether that is possible without waiting for another rank, where anybody asks."""


class Communicator(ABC):
    """The ranks of one data-parallel job. All launch the same collectives, with the same names, in the same order.

    `name` identifies a collective: Horovod pairs messages by it, torch.distributed by their order alone.
    """

    rank: int
    """Number of this rank, from 0."""
    world_size: int
    """Number of ranks."""
    control_device: torch.device = torch.device("cpu")
    """Device of the small tensors by which ranks agree."""

    @property
    def would_block(self) -> bool:
        """Whether the next collective cannot be launched until another rank has launched an earlier one."""
        return False

    def close(self) -> None:
        """Release the channel of the collectives to other communicators: no more will be launched."""
        return

    @abstractmethod
    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Sum `tensor`, of any shape, over all ranks, in place; it holds the result after the handle's `wait`."""

    @abstractmethod
    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Gather every rank's 1-D `tensor`, of one size or, without `equal_sizes`, of any sizes, including zero."""

    def gather(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Gather every rank's 1-D `tensor`, all of one size, into one new tensor: that of rank 0 first."""
        rows = self.all_gather(tensor, name)
        return Handle(lambda: torch.cat(list(rows.wait())))

    def reduce_scatter(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Sum 1-D `tensor` over all ranks; each gets its own part of the sum, a new 1-D tensor.

        Parts are equal, so `world_size` must divide the size of `tensor`, whose memory is used and then released.
        """
        whole = self.all_reduce(tensor, name)
        return Handle(lambda: torch.clone(whole.wait().view(self.world_size, -1)[self.rank]), whole.is_ready)

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        """Send the first `sizes[0]` elements of 1-D `tensor` to rank 0, the next `sizes[1]` to rank 1, and so on.

        The result is what each rank has sent to this one, in rank order, 1-D and perhaps empty. `sizes` are those of
        this rank alone: others may send other numbers. Raises NotImplementedError if a communicator lacks it:
        compressors that need it are refused before.
        """
        raise NotImplementedError(f"{type(self).__name__} has no all_to_all")

    def split(self, *partitions: Partition) -> "list[Communicator]":
        """Return for each of `partitions` the communicator of the part that this rank is in.

        All ranks call it together, with the same ones. Raises ConfigError for a communicator that cannot be divided.
        """
        raise ConfigError(
            f"hierarchy: only 'flat' is allowed over {type(self).__name__}, which has no method split(); "
            "give backend='torch' or 'horovod'"
        )

    @abstractmethod
    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Overwrite `tensor` with rank 0's, and return it when this is done."""
