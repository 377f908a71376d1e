"""Collectives of torch.distributed in which ranks send unequal numbers of elements: sizes first, then what is sent."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from resireduce.comm.base import Handle
from resireduce.payload import ALIGNMENT


@dataclass
class Brought:
    """A collective under way that brings `sizes[i]` elements from rank i.

    The result has them one after the other, or at the beginning of equally long rows.
    """

    work: dist.Work
    result: Tensor
    sizes: list[int]
    device: torch.device

    def wait(self) -> Sequence[Tensor]:
        """Wait for the elements, and return those of each rank, in rank order."""
        self.work.wait()
        result = self.result.to(self.device, non_blocking=True)
        if result.dim() == 1:
            return result.split(self.sizes)
        return [row[:size] for row, size in zip(result.unbind(), self.sizes, strict=True)]


class Launches(Protocol):
    """The communicator that launches these collectives."""

    world_size: int
    """Number of ranks."""
    control_device: torch.device
    """Where sizes must lie."""

    def gather_rows(self, tensor: Tensor, sizes: list[int]) -> Brought:
        """Launch a gather of 1-D `tensor`, equally long on all ranks; the first `sizes[i]` elements of rank i count."""

    def send_pieces(self, tensor: Tensor, sizes: list[int], theirs: list[int]) -> Brought:
        """Launch an exchange: `sizes[i]` elements of 1-D `tensor` go to rank i, `theirs[i]` come from it."""


class Ragged(ABC):
    """A collective of unequal sizes: first of the sizes, then of the elements.

    The second is launched before any other collective of the communicator, at the latest when it is waited for. So all
    ranks launch in one order, wherever each of them waits.

    Args:
        communicator: launches both.
        tensor: 1-D, what this rank sends.
        sizes: the collective that brings the sizes, under way.
    """

    def __init__(self, communicator: Launches, tensor: Tensor, sizes: Brought):
        self._communicator, self._tensor, self._sizes = communicator, tensor, sizes
        self._launched: Handle[Sequence[Tensor]] | None = None

    @property
    def is_known(self) -> bool:
        """Whether all ranks' sizes are there."""
        return self._launched is not None or self._sizes.work.is_completed()

    def launch(self) -> Handle[Sequence[Tensor]]:
        """Receive the sizes, and launch the collective of the elements, if that has not been done."""
        if self._launched is None:
            self._launched = self._launch([int(size) for size in self._sizes.wait()])
        return self._launched

    def wait(self) -> Sequence[Tensor]:
        """Return what each rank has sent to this one, in the order of ranks."""
        return self.launch().wait()

    @abstractmethod
    def _launch(self, theirs: list[int]) -> Handle[Sequence[Tensor]]: ...


class RaggedGather(Ragged):
    """A gather of tensors that are padded to the largest.

    Args:
        communicator: launches the gathers of the sizes and of the elements.
        tensor: 1-D, of any size.
    """

    def __init__(self, communicator: Launches, tensor: Tensor):
        size = torch.tensor([tensor.numel()], device=communicator.control_device)
        super().__init__(communicator, tensor, communicator.gather_rows(size, [1] * communicator.world_size))

    def _launch(self, theirs: list[int]) -> Handle[Sequence[Tensor]]:
        longest = max(1, -(-max(theirs) // ALIGNMENT)) * ALIGNMENT
        padded = pad(self._tensor, (0, longest - self._tensor.numel()))
        return self._communicator.gather_rows(padded, theirs)


class RaggedExchange(Ragged):
    """An exchange without padding.

    Args:
        communicator: launches the exchanges of the sizes and of the elements.
        tensor: 1-D, what this rank has for rank 0, followed by what it has for rank 1, and so on.
        sizes: how many elements it has for each rank.
    """

    def __init__(self, communicator: Launches, tensor: Tensor, sizes: Sequence[int]):
        self._own = list(sizes)
        one = [1] * communicator.world_size
        told = torch.tensor(self._own, device=communicator.control_device)
        super().__init__(communicator, tensor, communicator.send_pieces(told, one, one))

    def _launch(self, theirs: list[int]) -> Handle[Sequence[Tensor]]:
        return self._communicator.send_pieces(self._tensor, self._own, theirs)
