"""Selection in chunks: the largest elements of each, or whole chunks by their L1 norm."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.compressors.base import Agreeing, Selecting, State, count
from resireduce.core.messages import Payload, Rounds
from resireduce.kernels.codes import pack_codes, unpack_codes
from resireduce.kernels.ops import norms_of_blocks
from resireduce.pieces import share, slices


@dataclass(frozen=True)
class Chunked(Selecting):
    """Sends of each chunk of 4096 elements the k largest magnitudes, k = max(1, floor(density x 4096)): 14 bits each.

    Twelve bits are the place in the chunk. Two are the value: its sign, and whether it is larger than the mean
    magnitude of what is sent; the mean magnitudes of the larger and of the smaller ones travel once for the tensor. A
    shorter last chunk is filled up with zeros; a smaller tensor is one chunk.

    Source: Chunked top-k with values of two bits: Sarfi et al., "Communication efficient LLM pre-training with
    SparseLoCo", 2025, arXiv 2508.15706.
    """

    chunk: int = count(4096, 2, "elements")
    """Elements of a chunk, 2 or more."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return places and codes in planes of bits, and two levels, in float32 (float64 of float64)."""
        flat = grad.view(-1)
        size, width, count, k = self._layout(flat.numel())
        narrow = torch.int16 if size <= torch.iinfo(torch.int16).max else torch.int64
        places = torch.empty(count, k, dtype=narrow, device=flat.device)
        values = torch.empty(count, k, dtype=torch.promote_types(flat.dtype, torch.float32), device=flat.device)
        for rows in slices(count, 64):
            part = flat[rows.start * size : rows.stop * size]
            chunks = pad(part, (0, (rows.stop - rows.start) * size - part.numel())).view(-1, size)
            chosen = chunks.abs().topk(k, 1, sorted=False).indices
            places[rows], values[rows] = chosen, chunks.gather(1, chosen)
        values, magnitudes = values.view(-1), values.view(-1).abs()
        large = magnitudes > _mean(magnitudes, magnitudes >= 0)
        levels = torch.stack((_mean(magnitudes, ~large), _mean(magnitudes, large)))
        codes = large.to(torch.uint8) | (values < 0).to(torch.uint8) << 1
        packed = (pack_codes(places.view(-1), width), pack_codes(codes, 2))
        return Payload.pack(*(planes.view(-1) for planes in packed), levels, like=grad)

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that the payload holds: 1-D int64; beyond the end where a chunk was filled up."""
        size, width, count, k = self._layout(payload.shape.numel())
        local = unpack_codes(payload.parts()[0].view(width, -1), count * k).view(count, k)
        return local.add_(torch.arange(count, device=local.device).mul_(size).view(-1, 1)).view(-1)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        _, codes, levels = payload.parts()
        flat, indices = dense.view(-1), self.sent_indices(payload)
        codes = unpack_codes(codes.view(2, -1), indices.numel(), torch.int32)
        values = levels[codes & 1].mul_(1 - (codes & 2)).masked_fill_(indices >= flat.numel(), 0)
        flat.index_add_(0, indices.clamp_(max=flat.numel() - 1), values.to(flat.dtype), alpha=scale)
        return dense

    def _layout(self, numel: int) -> tuple[int, int, int, int]:
        """Return the elements of a chunk, the bits of a place in it, the number of chunks, and what is sent of each."""
        size = min(self.chunk, numel)
        return size, max((size - 1).bit_length(), 1), -(-numel // size), share(self.density, size)


def _mean(magnitudes: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the chosen magnitudes, 0-D, in their dtype; 0 if there are none. It cannot overflow."""
    total = (magnitudes * chosen).double().div_(chosen.sum().clamp(min=1)).sum()
    return total.clamp_(max=torch.finfo(total.dtype).max).to(magnitudes.dtype)


@dataclass(frozen=True)
class L1Chunks(Agreeing, Selecting):
    """Sends the k chunks of the largest L1 norms, summed over all ranks: the same on all, which an all-reduce sums.

    k = max(1, floor(density x number of chunks)). Norms are formed and summed in float32 at least; among equal norms
    the first chunks are sent. A shorter last chunk of a tensor is filled up with zeros.

    Source: Chunks by their L1 norm: Sun et al., "Optimizing network performance for distributed DNN training on GPU
    clusters: ImageNet/AlexNet training in 1.5 minutes", arXiv 1902.06855, 2019, which the release of DGC wishes for.
    """

    size: int = count(256, 1, "elements")
    """Elements of a chunk."""

    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        flat = grad.view(-1)
        norms = yield norms_of_blocks(flat, self.size, 1, torch.promote_types(flat.dtype, torch.float32))
        count = share(self.density, len(norms))
        chunks = norms.sort(descending=True, stable=True).indices[:count].sort().values
        places, inside = self._places(chunks, flat.numel())
        values = flat[places].mul_(inside)
        return Payload.pack(values, like=grad, known=chunks, rounds_bytes=norms.nbytes)

    def sent_indices(self, payload: Payload) -> Tensor:
        assert payload.known is not None
        places, inside = self._places(payload.known, payload.shape.numel())
        return places[inside]

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        assert payload.known is not None
        places, _ = self._places(payload.known, dense.numel())  # what fills up is zero
        dense.view(-1).index_add_(0, places, payload.buffer.to(dense.dtype), alpha=scale)
        return dense

    def _places(self, chunks: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Return the flat indices of all elements of `chunks`, and which are inside the tensor; others are clamped."""
        places = chunks.unsqueeze(1).mul(self.size).add(torch.arange(self.size, device=chunks.device)).view(-1)
        return places.clamp(max=numel - 1), places < numel
