"""No compression: what DistributedDataParallel does."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from resireduce.compressors.base import Collective, Compressor
from resireduce.payload import Payload


@dataclass(frozen=True)
class NoCompression(Compressor):
    """The gradient itself travels, in its own memory, and is summed in place by an all-reduce."""

    collective: ClassVar[Collective] = "all_reduce"
    lossless: ClassVar[bool] = True

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Density means nothing here: everything is sent."""
        return cls()

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """The gradient as its own payload: shares memory with `grad`."""
        return Payload.pack(grad.view(-1), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """`dense` += `scale` x payload."""
        return dense.add_(payload.buffer.view(payload.shape), alpha=scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Zero. The payload may share `grad`'s memory, so this ends its use."""
        return grad.zero_()
