"""Indices at little more than their entropy: Sattler et al., "Sparse binary compression: towards distributed deep
learning with minimal communication", IJCNN 2019, which has Golomb's codes of the gaps between them; here Rice's."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor, Momentum, State
from resireduce.compressors.dgc import DGC
from resireduce.compressors.sparse import SparseCompressor
from resireduce.compressors.topk import TopK
from resireduce.kernels.rice import decode, encode
from resireduce.payload import Payload

HEADER = 8
"""Bytes before the values: one int64, the number of values x 256 + the width of the codes."""


@dataclass(frozen=True)
class Packed(Compressor):
    """Sends what top-k selects, values as they are, and of each index the gap before it, in Golomb-Rice code.

    Another compressor, given as `of`, can select instead. Indices at random places need at least n x H(k / n) bits, H
    the binary entropy, and take a hundredth more; those that lie together take fewer. The length of a message depends
    on this.
    """

    equal_sizes: ClassVar[bool] = False

    of: SparseCompressor
    """Selects the elements; its values are sent as it rounds them, if it does."""

    @property
    def exact(self) -> bool:
        """Whether the values are the gradient's own."""
        return self.of.exact

    @property
    def momentum(self) -> Momentum | None:
        """Momentum that the other compressor corrects, if any."""
        return self.of.momentum

    @property
    def memory(self) -> str:
        """What decides the meaning of the other compressor's state."""
        return self.of.memory

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Return the compressor of top-k with this density, in (0, 1]."""
        return cls(TopK(density))

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return one buffer of bytes: a header, values, codes of the gaps between indices."""
        return self._packed(self.of.compress(grad, name, step), grad, (name, step))

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return the other compressor's state of a tensor of `shape`, with dtype and device of `like`."""
        return self.of.state(shape, like)

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        """Do as `compress` of `grad`, `name` and `step`, with the other's `state`, which it may change in place."""
        return self._packed(self.of.compress_with(grad, name, step, state), grad, (name, step))

    def _packed(self, payload: Payload, grad: Tensor, source: tuple[str, int]) -> Payload:
        values, indices = payload.parts()
        width, codes = encode(indices.long(), grad.numel())
        header = torch.full((1,), len(values) << 8 | width, dtype=torch.int64, device=grad.device)
        parts = (header.view(torch.uint8), values.view(torch.uint8), codes)
        return Payload.pack(torch.cat(parts), like=grad, source=source)

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that the payload holds: 1-D, int64, ascending."""
        return self.of.sent_indices(self._unpacked(payload))

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the values to their places in `dense`; return `dense`."""
        return self.of.add_(dense, self._unpacked(payload), scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract what was sent from `grad`; return it."""
        return self.of.error_(grad, self._unpacked(payload))

    def _unpacked(self, payload: Payload) -> Payload:
        """Return the payload as the other compressor makes it."""
        like = torch.empty(payload.shape, dtype=payload.dtype, device="meta")
        dtype = torch.float16 if self.of.half else payload.dtype
        # Without storage their number is unknown; decoded, they are few beside the tensor.
        header = 0 if payload.buffer.is_meta else int(payload.buffer[:HEADER].clone().view(torch.int64))
        count, width = header >> 8, header & 255
        stop = HEADER + count * dtype.itemsize
        values = payload.buffer[HEADER:stop].clone().view(dtype)
        return Payload.pack(values, decode(payload.buffer[stop:], width, count), like=like)


@dataclass(frozen=True)
class PackedDGC(Packed):
    """Sends what DGC selects, values as they are, and of each index the gap before it, in Golomb-Rice code."""

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Return the compressor of DGC's selection with this density, in (0, 1]."""
        return cls(DGC(density))
