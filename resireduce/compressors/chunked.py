"""Chunked top-k with values of two bits: Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo",
2025, arXiv 2508.15706."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.blocks import slices
from resireduce.compressors.base import Inexact, Selecting
from resireduce.errors import check_count
from resireduce.kernels.bits import pack_codes, unpack_codes
from resireduce.payload import Payload
from resireduce.share import share

ROWS = 64
"""Chunks that are processed at once."""


@dataclass(frozen=True)
class Chunked(Selecting, Inexact):
    """Sends of each chunk of 4096 elements the k largest magnitudes, k = max(1, floor(density x 4096)): 14 bits each.

    Twelve bits are the place in the chunk. Two are the value: its sign, and whether it is larger than the mean
    magnitude of what is sent; the mean magnitudes of the larger and of the smaller ones travel once for the tensor. A
    shorter last chunk is filled up with zeros; a smaller tensor is one chunk.
    """

    chunk: int = 4096
    """Elements of a chunk, 2 or more."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a density or a chunk that cannot be used."""
        super().__post_init__()
        check_count("chunk", self.chunk, 2, "elements")

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return places and codes in planes of bits, and two levels, in float32 (float64 of float64)."""
        flat = grad.view(-1)
        size, count, k = self._layout(flat.numel())
        narrow = torch.int16 if size <= torch.iinfo(torch.int16).max else torch.int64
        places = torch.empty(count, k, dtype=narrow, device=flat.device)
        values = torch.empty(count, k, dtype=torch.promote_types(flat.dtype, torch.float32), device=flat.device)
        for rows in slices(count, ROWS):
            part = flat[rows.start * size : rows.stop * size]
            chunks = pad(part, (0, (rows.stop - rows.start) * size - part.numel())).view(-1, size)
            chosen = chunks.abs().topk(k, 1, sorted=False).indices
            places[rows], values[rows] = chosen, chunks.gather(1, chosen)
        values, magnitudes = values.view(-1), values.view(-1).abs()
        large = magnitudes > _mean(magnitudes, magnitudes >= 0)
        levels = torch.stack((_mean(magnitudes, ~large), _mean(magnitudes, large)))
        codes = large.to(torch.uint8) | (values < 0).to(torch.uint8) << 1
        packed = (pack_codes(places.view(-1), _width(size)), pack_codes(codes, 2))
        return Payload.pack(*(planes.view(-1) for planes in packed), levels, like=grad, source=(name, step))

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that the payload holds: 1-D int64; beyond the end where a chunk was filled up."""
        size, count, k = self._layout(payload.shape.numel())
        local = unpack_codes(payload.parts()[0].view(_width(size), -1), count * k).view(count, k)
        return local.add_(torch.arange(count, device=local.device).mul_(size).view(-1, 1)).view(-1)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x sign x level to the places in `dense`; return `dense`."""
        _, codes, levels = payload.parts()
        flat, indices = dense.view(-1), self.sent_indices(payload)
        codes = unpack_codes(codes.view(2, -1), indices.numel(), torch.int32)
        values = levels[codes & 1].mul_(1 - (codes & 2)).masked_fill_(indices >= flat.numel(), 0)
        flat.index_add_(0, indices.clamp_(max=flat.numel() - 1), values.to(flat.dtype), alpha=scale)
        return dense

    def _layout(self, numel: int) -> tuple[int, int, int]:
        """Return the elements of a chunk, the number of chunks, and how many elements of each are sent."""
        size = min(self.chunk, numel)
        return size, -(-numel // size), share(self.density, size)


def _width(size: int) -> int:
    """Return how many bits a place within a chunk of `size` elements takes on the wire."""
    return max((size - 1).bit_length(), 1)


def _mean(magnitudes: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the chosen magnitudes, 0-D, in their dtype; 0 if there are none. It cannot overflow."""
    total = (magnitudes * chosen).double().div_(chosen.sum().clamp(min=1)).sum()
    return total.clamp_(max=torch.finfo(total.dtype).max).to(magnitudes.dtype)
