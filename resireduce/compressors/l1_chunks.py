"""Chunks by their L1 norm: Sun et al., "Optimizing network performance for distributed DNN training on GPU clusters:
ImageNet/AlexNet training in 1.5 minutes", arXiv 1902.06855, 2019, which the release of DGC wishes for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.compressors.agreeing import Agreeing
from resireduce.compressors.base import Rounds, Selecting, State
from resireduce.errors import check_count
from resireduce.payload import Payload
from resireduce.share import share


@dataclass(frozen=True)
class L1Chunks(Agreeing, Selecting):
    """Sends the k chunks of the largest L1 norms, summed over all ranks: the same on all, which an all-reduce sums.

    k = max(1, floor(density x number of chunks)). Norms are formed and summed in float32 at least; among equal norms
    the first chunks are sent. A shorter last chunk of a tensor is filled up with zeros.
    """

    size: int = 256
    """Elements of a chunk."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting that cannot be used."""
        super().__post_init__()
        check_count("size", self.size, 1, "elements")

    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        """Sum the norms of the chunks of `grad` over all ranks; return the values of the chunks that follow."""
        flat = grad.view(-1)
        norms = yield self._norms(flat)
        count = share(self.density, len(norms))
        chunks = norms.sort(descending=True, stable=True).indices[:count].sort().values
        places, inside = self._places(chunks, flat.numel())
        values = flat[places].mul_(inside)
        return Payload.pack(values, like=grad, known=chunks, rounds_bytes=norms.nbytes)

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that the payload holds: 1-D int64, ascending."""
        assert payload.known is not None
        places, inside = self._places(payload.known, payload.shape.numel())
        return places[inside]

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the values of the payload's chunks to their places in `dense`; return it."""
        assert payload.known is not None
        places, _ = self._places(payload.known, dense.numel())  # what fills up is zero
        dense.view(-1).index_add_(0, places, payload.buffer.to(dense.dtype), alpha=scale)
        return dense

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Set the payload's chunks of `grad` to zero; return it."""
        assert payload.known is not None
        places, _ = self._places(payload.known, grad.numel())
        grad.view(-1).index_fill_(0, places, 0.0)
        return grad

    def _norms(self, flat: Tensor) -> Tensor:
        dtype = torch.promote_types(flat.dtype, torch.float32)
        norms = torch.zeros(-(-flat.numel() // self.size), dtype=dtype, device=flat.device)
        whole = flat.numel() // self.size * self.size
        for piece in pieces(whole, self.size):
            chunks = slice(piece.start // self.size, piece.stop // self.size)
            torch.linalg.vector_norm(flat[piece].view(-1, self.size), 1, dim=1, dtype=dtype, out=norms[chunks])
        if whole < flat.numel():
            norms[-1] = torch.linalg.vector_norm(flat[whole:], 1, dtype=dtype)
        return norms

    def _places(self, chunks: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Return the flat indices of all elements of `chunks`, and which are inside the tensor; others are clamped."""
        places = chunks.unsqueeze(1).mul(self.size).add(torch.arange(self.size, device=chunks.device)).view(-1)
        return places.clamp(max=numel - 1), places < numel
