"""AD-Topk, which selects in each row or column, and the same by a threshold that is adapted."""

import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Selecting, State, count, number
from resireduce.compressors.packed import SparseCompressor
from resireduce.compressors.thresholds import reaching
from resireduce.compressors.topk import TopK, largest_without_zeros
from resireduce.core.messages import Payload
from resireduce.pieces import row_pieces, share


@dataclass(frozen=True)
class ADTopK(Selecting):
    """Sends of dimension 1 the k largest magnitudes, k = max(1, floor(density x length)), for all other indices alike.

    So every row of a matrix, and every filter position of a convolution, contributes. Places are counted within
    dimension 1, in the narrowest dtype that holds them. A tensor of fewer dimensions is one row. At least one element
    of each row is sent, which exceeds the density where rows are short. Among equal magnitudes torch chooses.

    Source: AD-Topk, all-dimension top-k: Ming et al., "ADTopk: All-dimension top-k compression for high-performance
    data-parallel DNN training", HPDC 2024.
    """

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the values of all rows, and their places within the row (of at most 256 elements: one byte each)."""
        whole = grad.view(_rows(grad.shape))
        outer, length, inner = whole.shape
        k = share(self.density, length)
        dtypes = torch.uint8, torch.int16, torch.int32, torch.int64
        dtype = next(one for one in dtypes if length - 1 <= torch.iinfo(one).max)
        values = torch.empty(outer, k, inner, dtype=grad.dtype, device=grad.device)
        places = torch.empty(outer, k, inner, dtype=dtype, device=grad.device)
        for rows in row_pieces(whole):
            chosen = whole[rows].abs().topk(k, 1, sorted=False).indices.sort(1).values
            values[rows], places[rows] = whole[rows].gather(1, chosen), chosen.to(dtype)
        return Payload.pack(values.view(-1), places.view(-1), like=grad)

    def sent_indices(self, payload: Payload) -> Tensor:
        return _flat(_in_rows(payload, 1), _rows(payload.shape)[1])

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        values, places, whole = _in_rows(payload, 0), _in_rows(payload, 1), dense.view(_rows(dense.shape))
        for rows in row_pieces(whole):
            indices, added = _flat(places[rows], whole.shape[1]), values[rows].reshape(-1)
            whole[rows].view(-1).index_add_(0, indices, added.to(dense.dtype), alpha=scale)
        return dense


@dataclass(frozen=True)
class ADTopKInterleaved(ADTopK):
    """Sends all-dimension top-k in the first step and every second after it, in those between the k largest of all.

    The step number decides, so that all ranks alternate together.
    """

    turns: ClassVar[int] = 2

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        return replace(self._in_turn((name, step)).compress(grad, name, step), source=(name, step))

    def sent_indices(self, payload: Payload) -> Tensor:
        return self._in_turn(payload.source).sent_indices(payload)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        return self._in_turn(payload.source).add_(dense, payload, scale)

    def _in_turn(self, source: tuple[str, int] | None) -> ADTopK | TopK:
        assert source is not None
        return TopK(self.density) if source[1] % 2 else ADTopK(self.density)


def _rows(shape: torch.Size) -> tuple[int, int, int]:
    """Return the numbers of elements before, in and after dimension 1; a tensor without it is one row."""
    return (shape[0], shape[1], shape[2:].numel()) if len(shape) > 1 else (1, shape.numel(), 1)


def _in_rows(payload: Payload, part: int) -> Tensor:
    """Return a part of the payload by rows, [outer, k, inner]."""
    outer, _, inner = _rows(payload.shape)
    return payload.parts()[part].view(outer, -1, inner)


def _flat(places: Tensor, length: int) -> Tensor:
    """Return the indices, 1-D int64, in flat [rows, length, inner], of `places` in its rows, [rows, k, inner]."""
    rows, _, inner = places.shape
    first = torch.arange(rows, device=places.device).view(-1, 1, 1).mul_(length)
    return (first + places).mul_(inner).add_(torch.arange(inner, device=places.device)).view(-1)


UNKNOWN = sys.float_info.max
"""The change of a threshold that has not changed yet: a finite number, as all that is saved must be."""


@dataclass(frozen=True)
class ADTopKThreshold(Selecting, SparseCompressor):
    """Sends what reaches the least magnitude of an earlier top-k, which is taken anew every `every` steps.

    In the first `warm_up` steps, and in each whose number is a multiple of `every`, the k largest are sent, k = max(1,
    floor(density x n)), and the least of them is the threshold until the next time. It is this compressor's state, one
    for each tensor. In between, all elements that reach it are sent, which may be none, some or all; zeros are never
    sent. In the last quarter of `steps`, a tensor whose threshold last changed by at most `stable` of itself is sent by
    all-dimension top-k. A plan assumes k.

    Source: AD-Topk's form with thresholds: Ming et al., "ADTopk: All-dimension top-k compression for high-performance
    data-parallel DNN training", HPDC 2024, as its released code means it.
    """

    equal_sizes: ClassVar[bool] = False

    warm_up: int = count(15, of="steps")
    every: int = count(10, 1, "steps")
    """The released scripts have 5, 10 or 20, by model."""
    steps: int | None = count(None, 1, "steps", or_none=True)
    """Steps of the whole training; None: unknown, and all-dimension top-k is never used."""
    stable: float = number(0.1)
    """Our choice: the released code compares the threshold with itself."""

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return the threshold, negative before the first, and its last relative change: float64, [2]."""
        return {"threshold": torch.tensor([-1.0, UNKNOWN], dtype=torch.float64, device=like.device)}

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        return largest_without_zeros(flat, share(self.density, flat.numel()))

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        flat, memory = grad.view(-1), state["threshold"]
        if grad.is_meta:
            return self.compress(grad, name, step)
        threshold, change = memory.tolist()
        if self.steps is not None and step >= 0.75 * self.steps and change <= self.stable:
            rows = ADTopK(self.density)
            indices = rows.sent_indices(rows.compress(grad, name, step)).sort().values
            return self.packed(grad, indices[flat[indices] != 0])
        if step >= self.warm_up and step % self.every and threshold >= 0:
            return self.packed(grad, reaching(flat, threshold))
        indices = self.select(flat, name, step)
        if len(indices):
            least = float(flat[indices].abs().min())
            change = abs(least - threshold) / threshold if threshold > 0 else UNKNOWN
            memory.copy_(torch.tensor([least, change], dtype=torch.float64, device="cpu"))
        return self.packed(grad, indices)
