"""What a communicator promises."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """A collective that has been launched."""

    def wait(self) -> T_co:
        """Wait for the result, and return it."""


@dataclass
class Deferred(Generic[T]):
    """A handle whose result is made when it is waited for."""

    finish: Callable[[], T]
    """Makes the result; called once for each `wait`."""

    def wait(self) -> T:
        """Make the result, and return it."""
        return self.finish()


class Communicator(ABC):
    """The ranks of one data-parallel job. All launch the same collectives, of the same names, in the same order.

    `name` tells a collective from others: Horovod pairs messages by it, torch.distributed by their order alone.
    """

    rank: int
    """Number of this rank, from 0."""
    world_size: int
    """Number of ranks."""
    control_device: torch.device = torch.device("cpu")
    """Where small tensors must lie that ranks agree by."""

    @property
    def would_block(self) -> bool:
        """Whether the next collective cannot be launched before another rank has launched an earlier one."""
        return False

    def close(self) -> None:
        """Let another communicator use what collectives went through: no more will be launched."""
        return

    @abstractmethod
    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Sum over all ranks, in place; the result is `tensor`, of any shape, when the handle has been waited for."""

    @abstractmethod
    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Every rank's 1-D `tensor`: all of one size or, without `equal_sizes`, each of its own, which may be zero."""

    @abstractmethod
    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Overwrite `tensor` with rank 0's, and return it when that is done."""
