"""Every element: as it is, in half precision, or in blocks of few bits."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Collective, Compressor, Inexact
from resireduce.core.payload import Payload
from resireduce.errors import ConfigError, is_count
from resireduce.kernels.codes import BYTE, octets, pack_codes, unpack_codes
from resireduce.kernels.norms import norms_of_blocks
from resireduce.pieces import pieces, spread


@dataclass(frozen=True)
class NoCompression(Compressor):
    """The gradient itself travels, in its own memory, and is summed in place by an all-reduce.

    Source: No compression: what DistributedDataParallel does.
    """

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


@dataclass(frozen=True)
class Fp16(Inexact):
    """Sends every element as float16, summed by an all-reduce; what rounding takes away is the error.

    Values beyond `largest` are sent as `largest`; the rest is error too.

    Source: Half precision: gradients travel and are summed in 16 bits, as Horovod's fp16 compression does.
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
        halves = grad.view(-1).to(torch.float16, copy=True)  # what is beyond `largest` is rounded to it, or beyond it
        return Payload.pack(halves.clamp_(-self.largest, self.largest), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x payload to `dense`, in the precision of `dense`; return `dense`."""
        return dense.add_(payload.buffer.view(payload.shape).to(dense.dtype), alpha=scale)


@dataclass(frozen=True)
class Block8(Inexact):
    """Sends every element as the nearest of 255 levels, multiples of its block's largest magnitude / 127: 8 bits.

    Rounding is to the nearest, without a draw. Each rank decodes all payloads: nothing is quantised twice.

    Source: Blocks of few bits, as ZeRO++ sends them: Wang et al., "ZeRO++: Extremely efficient collective communication
    for large model training", ICLR 2024, section 3.3.
    """

    source_feeds_back: ClassVar[bool] = False
    bits: ClassVar[int] = 8

    block: int = 256
    """Elements that share a scale, a multiple of 8."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a block that cannot be used."""
        if not is_count(self.block) or self.block < BYTE or self.block % BYTE:
            raise ConfigError(f"block: {self.block!r} is not allowed; give a number of elements, a multiple of {BYTE}")

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return levels of all elements, and scales of all blocks in float32 (float64 of float64)."""
        flat = grad.view(-1)
        wide = torch.promote_types(flat.dtype, torch.float32)
        scales, most = norms_of_blocks(flat, self.block, torch.inf).to(wide), self._most
        codes = torch.empty(*self._shape(flat.numel()), dtype=torch.uint8, device=flat.device)
        for piece in pieces(flat.numel(), self.block):
            largest = spread(scales, self.block, piece).clamp(min=torch.finfo(scales.dtype).tiny)
            levels = (flat[piece] / largest).mul_(most).round_().add_(most).to(torch.uint8)
            codes[:, self._columns(piece)] = levels if self.bits == BYTE else pack_codes(levels, self.bits)
        return Payload.pack(codes.view(-1), scales, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x level / most level x scale of the block to `dense`; return `dense`."""
        packed, scales = payload.parts()
        flat = dense.view(-1)
        codes = packed.view(self._shape(flat.numel()))
        for piece in pieces(flat.numel(), self.block):
            part = codes[:, self._columns(piece)]
            whole = part[0] if self.bits == BYTE else unpack_codes(part, piece.stop - piece.start, torch.uint8)
            levels = whole.to(scales.dtype)
            values = levels.sub_(self._most).div_(self._most).mul_(spread(scales, self.block, piece))
            flat[piece].add_(values.to(flat.dtype), alpha=scale)
        return dense

    def _shape(self, numel: int) -> tuple[int, int]:
        """Return the rows and columns of bytes that hold the levels of `numel` elements: of fewer bits, in planes."""
        return (1, numel) if self.bits == BYTE else (self.bits, -(-numel // BYTE))

    def _columns(self, piece: slice) -> slice:
        """Return the columns that hold the levels of a piece."""
        return piece if self.bits == BYTE else octets(piece)

    @property
    def _most(self) -> int:
        """The greatest whole number that the bits of an element hold beside its sign."""
        return 2 ** (self.bits - 1) - 1


@dataclass(frozen=True)
class Block4(Block8):
    """Sends every element as the nearest of 15 levels, multiples of its block's largest magnitude / 7: 4 bits."""

    bits: ClassVar[int] = 4
