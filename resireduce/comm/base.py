"""What a communicator promises."""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor


class Handle(Protocol):
    """A collective that has been launched."""

    def wait(self) -> Tensor:
        """The result, once it is there."""


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
    def all_gather(self, tensor: Tensor, name: str) -> Handle:
        """Every rank's 1-D `tensor`, all of one size: the result has shape (world size, numel), row i from rank i."""

    @abstractmethod
    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Overwrite `tensor` with rank 0's, and return it when that is done."""
