"""What a communicator promises."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Handle(Protocol):
    """A collective that has been launched."""

    def wait(self) -> Tensor:
        """The result, once it is there."""


class Gathered(Protocol):
    """An all-gather that has been launched."""

    def wait(self) -> Sequence[Tensor]:
        """Every rank's tensor, in the order of ranks, once they are there."""


class Communicator(ABC):
    """The ranks of one data-parallel job. All launch the same collectives, of the same names, in the same order."""

    rank: int
    world_size: int
    control_device: torch.device = torch.device("cpu")
    """Where small tensors must lie that ranks agree by."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, name: str) -> Handle:
        """Sum over all ranks, in place; the result is `tensor`."""

    @abstractmethod
    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Gathered:
        """Every rank's 1-D `tensor`: all of one size or, without `equal_sizes`, each of its own, which may be zero."""

    @abstractmethod
    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Overwrite `tensor` with rank 0's, and return it when that is done."""
