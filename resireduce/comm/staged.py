"""Tensors of a GPU over gloo, which gathers only those of the host: by way of copies in pinned memory.

Two ranks on one GPU need it, which NCCL refuses. The host waits for the GPU at each launch, so that nothing is hidden
behind the backward pass: right for measuring memory, not for speed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.comm.base import Polled


def to_host(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of `tensor` in the host's memory, pinned if it comes from a GPU, when it is there."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda).copy_(tensor)


@dataclass
class Unstaged:
    """The handle of a collective whose result in the host's memory belongs into `target`."""

    handle: Polled[Tensor]
    target: Tensor

    @property
    def is_ready(self) -> bool:
        """Whether the result has come to the host's memory."""
        return self.handle.is_ready

    def wait(self) -> Tensor:
        """Wait for the result, copy it into `target`, and return that."""
        return self.target.copy_(self.handle.wait(), non_blocking=True)
