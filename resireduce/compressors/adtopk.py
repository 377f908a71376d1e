"""AD-Topk, all-dimension top-k: Ming et al., "ADTopk: All-dimension top-k compression for high-performance
data-parallel DNN training", HPDC 2024."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.compressors.base import Selecting
from resireduce.compressors.topk import TopK
from resireduce.payload import Payload
from resireduce.share import share

NARROW = (torch.uint8, torch.int16, torch.int32, torch.int64)
"""Dtypes for places within a row: the first that can hold them is used."""


@dataclass(frozen=True)
class ADTopK(Selecting):
    """Sends of dimension 1 the k largest magnitudes, k = max(1, floor(density x length)), for all other indices alike.

    So every row of a matrix, and every filter position of a convolution, contributes. Places are counted within
    dimension 1, in the narrowest dtype that holds them. A tensor of fewer dimensions is one row. At least one element
    of each row is sent, which exceeds the density where rows are short. Among equal magnitudes torch chooses.
    """

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the values of all rows, and their places within the row (of at most 256 elements: one byte each)."""
        outer, length, inner = _rows(grad.shape)
        k = share(self.density, length)
        dtype = next(one for one in NARROW if length - 1 <= torch.iinfo(one).max)
        values = torch.empty(outer, k, inner, dtype=grad.dtype, device=grad.device)
        places = torch.empty(outer, k, inner, dtype=dtype, device=grad.device)
        for rows, part in _parts(grad):
            chosen = part.abs().topk(k, 1, sorted=False).indices.sort(1).values
            values[rows], places[rows] = part.gather(1, chosen), chosen.to(dtype)
        return Payload.pack(values.view(-1), places.view(-1), like=grad, source=(name, step))

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that the payload holds: 1-D, int64, row by row."""
        return _flat(_in_rows(payload, 1), _rows(payload.shape)[1])

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the values to their places in `dense`, in which none repeats; return `dense`."""
        values, places = _in_rows(payload, 0), _in_rows(payload, 1)
        for rows, part in _parts(dense):
            indices, added = _flat(places[rows], part.shape[1]), values[rows].reshape(-1)
            part.view(-1).index_add_(0, indices, added.to(dense.dtype), alpha=scale)
        return dense

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Set `grad` to zero where it was sent; return it."""
        places = _in_rows(payload, 1)
        for rows, part in _parts(grad):
            part.view(-1).index_fill_(0, _flat(places[rows], part.shape[1]), 0.0)
        return grad


@dataclass(frozen=True)
class ADTopKInterleaved(ADTopK):
    """Sends all-dimension top-k in the first step and every second after it, in those between the k largest of all.

    The step number decides, so that all ranks alternate together.
    """

    turns: ClassVar[int] = 2

    always: tuple[str, ...] = ()
    """Substrings of the names of tensors that are always sent all-dimension. The released code has ("fc",), the name of
    a layer in some models; here no name has a meaning unless it is given."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the payload of this step's turn: all-dimension with places in rows, or top-k with int32 indices."""
        if self._takes_rows((name, step)):
            return super().compress(grad, name, step)
        return replace(TopK(self.density).compress(grad, name, step), source=(name, step))

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that the payload holds: 1-D, int64."""
        if self._takes_rows(payload.source):
            return super().sent_indices(payload)
        return TopK(self.density).sent_indices(payload)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the values to their places in `dense`; return `dense`."""
        if self._takes_rows(payload.source):
            return super().add_(dense, payload, scale)
        return TopK(self.density).add_(dense, payload, scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Set `grad` to zero where it was sent; return it."""
        if self._takes_rows(payload.source):
            return super().error_(grad, payload)
        return TopK(self.density).error_(grad, payload)

    def _takes_rows(self, source: tuple[str, int] | None) -> bool:
        """Whether the payload from that name, with the rank behind its last slash, and step is all-dimension."""
        assert source is not None
        name = source[0].rpartition("/")[0] or source[0]
        return source[1] % 2 == 0 or any(part in name for part in self.always)


def _rows(shape: torch.Size) -> tuple[int, int, int]:
    """Return the numbers of elements before, in and after dimension 1; a tensor without it is one row."""
    if len(shape) < 2:
        return 1, shape.numel(), 1
    return shape[0], shape[1], math.prod(shape[2:])


def _parts(dense: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield the tensor some outer rows at a time: their numbers, and a view of them, [rows, length, inner]."""
    _, length, inner = _rows(dense.shape)
    flat, row = dense.view(-1), length * inner
    for piece in pieces(flat.numel(), row):
        yield slice(piece.start // row, piece.stop // row), flat[piece].view(-1, length, inner)


def _in_rows(payload: Payload, part: int) -> Tensor:
    """Return a part of the payload by rows, [outer, k, inner]."""
    outer, _, inner = _rows(payload.shape)
    return payload.parts()[part].view(outer, -1, inner)


def _flat(places: Tensor, length: int) -> Tensor:
    """Return the indices, 1-D int64, in flat [rows, length, inner], of `places` in its rows, [rows, k, inner]."""
    rows, _, inner = places.shape
    first = torch.arange(rows, device=places.device).view(-1, 1, 1).mul_(length)
    return (first + places).mul_(inner).add_(torch.arange(inner, device=places.device)).view(-1)
