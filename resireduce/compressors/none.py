"""No compression: what DistributedDataParallel does."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from resireduce.compressors.base import Collective, Compressor
from resireduce.payload import Payload


@dataclass(frozen=True)
class NoCompression(Compressor):
    """The gradient itself travels, in its own memory, and is summed in place by an all-reduce."""

    collective: ClassVar[Collective] = "all_reduce"
    lossless: ClassVar[bool] = True
    source_feeds_back: ClassVar[bool] = False

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the gradient as its own payload, which shares the memory of `grad`."""
        return Payload.pack(grad.view(-1), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x payload to `dense`; return `dense`."""
        return dense.add_(payload.buffer.view(payload.shape), alpha=scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Set `grad` to zero and return it. The payload may share its memory, and then cannot be used any more."""
        return grad.zero_()
