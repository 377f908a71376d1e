"""Top-k sparsification: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.kernels.select import largest_magnitudes
from resireduce.payload import Payload
from resireduce.share import share


@dataclass(frozen=True)
class TopK(Compressor):
    """Sends the k elements of largest magnitude, as values (the gradient's dtype) and int32 indices."""

    density: float
    """Share of the elements that is sent, in (0, 1]."""

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Top-k with this density."""
        return cls(density)

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """The k largest: 8 bytes each in float32 (below 2^31 elements, which is what int32 can number)."""
        flat = grad.view(-1)
        indices = largest_magnitudes(flat, share(self.density, flat.numel()))
        values = flat[indices]
        narrow = torch.int32 if flat.numel() <= torch.iinfo(torch.int32).max else torch.int64
        return Payload.pack(values, indices.to(narrow), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Scatter-add. The indices of one payload are unique, so the result does not depend on any order."""
        values, indices = payload.parts()
        dense.view(-1).index_add_(0, indices, values, alpha=scale)
        return dense

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """`grad` with zeros where it was sent: exact, since what was sent are its own values."""
        _, indices = payload.parts()
        grad.view(-1).index_fill_(0, indices.long(), 0.0)
        return grad
