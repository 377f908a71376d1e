"""What compressors have in common that send some elements as values and indices."""

from abc import abstractmethod

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.payload import Payload


class SparseCompressor(Compressor):
    """Sends elements as they are, in the gradient's dtype, with int32 indices (int64 from 2^31 elements on)."""

    @abstractmethod
    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Indices (int64, unique, ascending) of the elements of 1-D `flat` to send; `name`, `step`: `compress`'s."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """The selected elements: 8 bytes each in float32."""
        flat = grad.view(-1)
        indices = self.select(flat, name, step)
        narrow = torch.int32 if flat.numel() <= torch.iinfo(torch.int32).max else torch.int64
        return Payload.pack(flat[indices], indices.to(narrow), like=grad, ragged=not self.equal_sizes)

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
