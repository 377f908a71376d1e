"""GPU tensors over gloo, which gathers only host tensors, through copies in pinned memory.

Two ranks on one GPU, which NCCL refuses, need it. The host waits for the GPU at each launch, so that nothing overlaps
with the backward pass: suitable for measuring memory, not speed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.comm.base import Polled


def to_host(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of `tensor` in the host's memory, pinned if it comes from a GPU, once it is complete."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


@dataclass
class Unstaged:
    """The handle of a collective whose result in the host's memory is to be copied into `target`."""

    handle: Polled[Tensor]
    target: Tensor

    @property
    def is_ready(self) -> bool:
        """Whether the result is in the host's memory."""
        return self.handle.is_ready

    def wait(self) -> Tensor:
        """Wait for the result, copy it into `target`, and return `target`."""
        return self.target.copy_(self.handle.wait(), non_blocking=True)
