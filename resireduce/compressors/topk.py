"""Top-k sparsification, and what all compressors share that send values and indices."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from resireduce import private
from resireduce.compressors.base import Compressor, Selecting, Sum
from resireduce.core.payload import Payload, unfilled
from resireduce.kernels.bucket import add_topk_, compress_topk_
from resireduce.kernels.norms import refuse_non_finite
from resireduce.kernels.on_gpu import in_triton
from resireduce.kernels.packed_largest import (
    LAYOUT,
    NOT_DONE,
    NOT_FINITE,
    add_sent_,
    add_sent_each_,
    packed_largest,
    packed_largest_each,
)
from resireduce.kernels.selection import largest_magnitudes, largest_of_sum_
from resireduce.pieces import share

# --- The common base of compressors that send some elements as values and indices ---


LARGEST_HALF = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class SparseCompressor(Compressor):
    """Sends some elements, in the gradient's dtype or in half precision, with int32 indices (int64 from 2^31 on)."""

    half: bool = field(default=False, kw_only=True)
    """Whether values travel as float16: 6 bytes per element. The rounding error stays in the residual."""

    @property
    def exact(self) -> bool:
        """Whether the values are the gradient's own: true unless they are rounded to half precision."""
        return not self.half

    @abstractmethod
    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the indices (int64, unique, ascending) of 1-D `flat` to send; `name`, `step`: as in `compress`."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the selected elements, values and int32 indices: 8 bytes each in float32."""
        return self.packed(grad, self.select(grad.view(-1), name, step))

    def packed(self, grad: Tensor, indices: Tensor) -> Payload:
        """Return the payload of the elements of contiguous `grad` at the flat `indices` (int64, unique, ascending)."""
        flat = grad.view(-1)
        values = flat.index_select(0, indices)
        if self.half:
            wide = values.to(torch.promote_types(values.dtype, torch.float32))  # bfloat16 has no such number
            values = wide.clamp_(-LARGEST_HALF, LARGEST_HALF).to(torch.float16)
            if not (self.equal_sizes or values.is_meta):  # what rounding makes zero need not travel
                kept = values.nonzero().view(-1)
                values, indices = values[kept], indices[kept]
        return Payload.pack(values, narrowed(indices, grad), like=grad, ragged=not self.equal_sizes)

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that the payload holds: 1-D, int64, ascending."""
        return payload.parts()[1].long()

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the values to their places in `dense`, in any order, as no index repeats; return `dense`."""
        (dtype, count), (index_dtype, _) = payload.layout  # compiled code takes float32, as `packed` lays it out
        if (dtype, index_dtype) == LAYOUT and add_sent_(dense, payload.buffer, count, scale):
            return dense
        values, indices = payload.parts()
        dense.view(-1).index_add_(0, indices, values.to(dense.dtype), alpha=scale)
        return dense

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract what was sent from `grad`; return it. Zeros, or rounding errors, are left there."""
        if self.half:
            return self.add_(grad, payload, scale=-1.0)
        grad.view(-1).index_fill_(0, self.sent_indices(payload), 0.0)
        return grad


def one_behind_another(parts: Sequence[Tensor]) -> Tensor | None:
    """Return 1-D `parts` of bytes as one tensor, a view; None if they do not lie one behind the other."""
    ends = [part.data_ptr() + part.numel() for part in parts]
    if any(end != part.data_ptr() for end, part in zip(ends, parts[1:], strict=False)):
        return None
    return parts[0].as_strided((sum(part.numel() for part in parts),), (1,))


def narrowed(indices: Tensor, like: Tensor) -> Tensor:
    """Return flat `indices` of a tensor `like` this one as they travel: int32, and int64 from 2^31 elements on."""
    return indices.to(torch.int32 if like.numel() <= torch.iinfo(torch.int32).max else torch.int64)


@dataclass(frozen=True)
class TopK(Selecting, SparseCompressor):
    """Sends the k elements of largest magnitude, k = max(1, floor(density x n)).

    Source: Top-k sparsification: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
    """

    @property
    def adds(self) -> bool:
        """Whether `select` is the one here: False for subclasses."""
        return type(self) is TopK

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Do as all sparse compressors; on a CPU by one call of compiled code, where that is faster."""
        k = self._count(grad)
        packed = None if self.half or not self.adds else packed_largest(grad.view(-1), k)
        return super().compress(grad, name, step) if packed is None else self._payload(grad, packed, k)

    def looks_at(self, *tensors: Tensor) -> bool:
        """Whether these are on a GPU where kernels look for NaN in what is added to them."""
        return not self.half and in_triton(*tensors)

    def take_from_sums_(self, sums: Sequence[Sum]) -> tuple[Tensor, list[Payload], set[int] | Tensor]:
        """Form all `sums`, take out their largest magnitudes, and return these as `Compressor` says.

        On a CPU one call of compiled code does all, and reads each element once. On a GPU the number of launches does
        not depend on how many there are.
        """
        layouts = [self._layout(one.dense) for one in sums]
        buffer, parts = unfilled(layouts, sums[0].dense.device)
        payloads = [
            Payload(part, layout, one.dense.shape, one.dense.dtype)
            for part, layout, one in zip(parts, layouts, sums, strict=True)
        ]
        if self.looks_at(*(one.dense for one in sums)):
            return buffer, payloads, self._take_on_gpu(sums, buffer)
        told = [
            (one.dense, self._count(one.dense), one.added, part, one.check)
            for one, part in zip(sums, parts, strict=True)
        ]
        statuses = [NOT_DONE] * len(sums) if self.half else packed_largest_each(told, takes=True)
        spoilt = {place for place, status in enumerate(statuses) if status == NOT_FINITE}
        for place, (one, status, payload) in enumerate(zip(sums, statuses, payloads, strict=True)):
            if status == NOT_DONE:
                try:
                    self._take_from(one, payload)
                except FloatingPointError:
                    spoilt.add(place)
            if place in spoilt:
                payload.buffer.copy_(self.compress(torch.zeros_like(one.dense), "", 0).buffer)
        return buffer, payloads, spoilt

    def _layout(self, dense: Tensor) -> tuple[tuple[torch.dtype, int], ...]:
        """Return the layout of the payload of `dense`."""
        count = self._count(dense)
        index = torch.int32 if dense.numel() <= torch.iinfo(torch.int32).max else torch.int64
        return (torch.float16 if self.half else dense.dtype, count), (index, count)

    def _take_on_gpu(self, sums: Sequence[Sum], buffer: Tensor) -> Tensor:
        """Form the sums, and write to `buffer` what is taken out; return 1 for each that NaN was added to, or 0."""
        for one in sums:
            if not (one.added is None or isinstance(one.added, Tensor)):
                one.added.add_to_(one.dense)
                one.added = None
        added, dense = [cast(Tensor | None, one.added) for one in sums], [one.dense for one in sums]
        return compress_topk_(added, dense, [self._count(one) for one in dense], buffer)

    def _take_from(self, one: Sum, payload: Payload) -> None:
        """Form the sum, take out its largest magnitudes, and write them to `payload`, without compiled code."""
        dense, added, k = one.dense, one.added, self._count(one.dense)
        if one.check == "added" and isinstance(added, Tensor):
            refuse_non_finite(added)
        if not (added is None or isinstance(added, Tensor)):
            added.add_to_(dense)
            added = None
        flat, more = dense.view(-1), None if added is None else added.view(-1)
        values, places = payload.parts()
        largest_of_sum_(flat, more, k, one.check == "sum", into=places)
        if self.half:
            payload.buffer.copy_(self.packed(dense, places.long()).buffer)
            self.error_(dense, payload)
            return
        torch.index_select(flat, 0, places, out=values)
        flat.index_fill_(0, places.long(), 0.0)

    def combine_each_(self, targets: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], scale: float) -> None:
        """Overwrite each of the `targets` with `scale` x the sum of all ranks' `payloads` of it, by one call."""
        if targets[0].is_meta and targets[0].dtype == torch.float32:
            return  # a plan, which counts memory: this takes none
        if self.adds and self._combine_on_gpu(targets, payloads, scale):
            return
        sent = [
            (dense, [(payload.buffer, payload.layout[0][1]) for payload in own])
            for dense, own in zip(targets, payloads, strict=True)
        ]
        if not (self.adds and not self.half and add_sent_each_(sent, scale, zero=True)):
            super().combine_each_(targets, payloads, scale)

    def _combine_on_gpu(self, targets: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], scale: float) -> bool:
        """Do as `combine_each_`, with a launch for each rank; return False, and do nothing, where kernels cannot."""
        if not (targets[0].dtype == torch.float32 and self.looks_at(*targets)):
            return False
        messages = [one_behind_another([own[rank].buffer for own in payloads]) for rank in range(len(payloads[0]))]
        if any(message is None for message in messages):
            return False
        private.zero_each_([*targets])
        for message in messages:
            add_topk_(targets, [own[0].layout[0][1] for own in payloads], cast(Tensor, message), scale)
        return True

    def _count(self, grad: Tensor) -> int:
        return share(self.density, grad.numel())

    def _payload(self, grad: Tensor, packed: Tensor, k: int) -> Payload:
        return Payload(packed, ((torch.float32, k), (torch.int32, k)), grad.shape, grad.dtype)

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the k largest magnitudes: int64, ascending."""
        return largest_magnitudes(flat, self._count(flat))
