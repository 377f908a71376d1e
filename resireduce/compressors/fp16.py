"""Half precision: gradients travel and are summed in 16 bits, as Horovod's fp16 compression does."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Collective, Inexact
from resireduce.payload import Payload


@dataclass(frozen=True)
class Fp16(Inexact):
    """Sends every element as float16, summed by an all-reduce; what rounding takes away is the error.

    Values beyond `largest` are sent as `largest`; the rest is error too.
    """

    collective: ClassVar[Collective] = "all_reduce"
    source_feeds_back: ClassVar[bool] = False
    largest: float = 2.0**15
    """Largest magnitude that one rank sends: a power of two, which every dtype holds exactly."""

    def for_world(self, world_size: int) -> "Fp16":
        """Return the compressor with a limit that keeps any full or partial sum over `world_size` ranks finite."""
        return replace(self, largest=2.0 ** math.floor(math.log2(torch.finfo(torch.float16).max / world_size)))

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return all elements as float16, in memory of their own: the sum over the ranks is formed there."""
        return Payload.pack(grad.view(-1).clamp(-self.largest, self.largest).to(torch.float16), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x payload to `dense`, in the precision of `dense`; return `dense`."""
        return dense.add_(payload.buffer.view(payload.shape).to(dense.dtype), alpha=scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract what was sent from `grad`, which leaves the rounding error; return `grad`."""
        return grad.sub_(payload.buffer.view(payload.shape).to(grad.dtype))
