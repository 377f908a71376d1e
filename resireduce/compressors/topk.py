"""Top-k and random-k sparsification, and what all compressors share that send values and indices."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Collective, Compressor, Selecting, add_where_
from resireduce.compressors.packed import pack, unpack
from resireduce.core.messages import Message, Payload, Ragged, Round
from resireduce.kernels.ops import add_sent_each_, in_one_launch, largest_each, largest_magnitudes
from resireduce.pieces import generator, one_of_each, share

if TYPE_CHECKING:
    from resireduce.core.feedback import Finiteness, Sum

# --- The common base of compressors that send some elements as values and indices ---


@dataclass(frozen=True)
class SparseCompressor(Compressor):
    """Sends some elements, in the gradient's dtype or in half precision, with int32 indices (int64 from 2^31 on)."""

    half: bool = field(default=False, kw_only=True)
    """Whether values travel as float16: 6 bytes per element. The rounding error stays in the residual."""
    coded: bool = field(default=False, kw_only=True)
    """Whether indices travel as the gaps between them, in Golomb-Rice code (`packed.py`): at random places a hundredth
    more than n x H(k / n) bits, H the binary entropy, and fewer where they lie together. Messages differ in length."""

    @property
    def equal_sizes(self) -> bool:
        return not self.coded

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
            limit = torch.finfo(torch.float16).max
            values = wide.clamp_(-limit, limit).to(torch.float16)
            if not (self.equal_sizes or values.is_meta):  # what rounding makes zero need not travel
                kept = values.nonzero().view(-1)
                values, indices = values[kept], indices[kept]
        if self.coded:
            return pack(values, indices, grad)
        kind = Payload if self.equal_sizes else Ragged
        return kind.pack(values, indices.to(index_dtype(grad)), like=grad)

    def _unpacked(self, payload: Payload) -> Payload:
        return unpack(payload, torch.float16 if self.half else payload.dtype) if self.coded else payload

    def sent_indices(self, payload: Payload) -> Tensor:
        return self._unpacked(payload).parts()[1].long()

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        payload = self._unpacked(payload)
        (dtype, count), (index_dtype, _) = payload.layout
        known = (dtype, index_dtype) == (torch.float32, torch.int32)  # as compiled code takes them
        if known and add_sent_each_([(dense, [(payload.buffer, count)])], scale, zero=False):
            return dense
        values, indices = payload.parts()
        dense.view(-1).index_add_(0, indices, values.to(dense.dtype), alpha=scale)
        return dense


def index_dtype(like: Tensor) -> torch.dtype:
    """Return in which dtype flat indices of a tensor `like` this one travel: int32, and int64 from 2^31 elements on."""
    return torch.int32 if like.numel() <= torch.iinfo(torch.int32).max else torch.int64


def largest_without_zeros(flat: Tensor, k: int) -> Tensor:
    """Return the indices (int64, ascending) of the `k` largest magnitudes of 1-D `flat`, without those of zeros."""
    chosen = largest_magnitudes(flat, k)
    return chosen if flat.is_meta else chosen[flat[chosen] != 0]


@dataclass(frozen=True)
class TopK(Selecting, SparseCompressor):
    """Sends the k elements of largest magnitude, k = max(1, floor(density x n)).

    Source: Top-k sparsification: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
    """

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        return largest_magnitudes(flat, share(self.density, flat.numel()))

    def send(self, sums: "Sequence[Sum]", finiteness: "Finiteness") -> Message | Round:
        """Return the message of a bucket, whose `sums` are all formed and compressed at once.

        On a GPU the kernels that add gradients to residuals look for NaN.
        """
        if self.half or self.coded:
            return super().send(sums, finiteness)
        checked = [one.gradient for one in sums if one.gradient is not None]
        looks = len(checked) == len(sums) and in_one_launch(checked) and all(one.is_addition for one in sums)
        if not looks:
            finiteness.look_later_(sums)
            checked = []
        pairs = [one.addends_() for one in sums]
        names, rests = [one.name for one in sums], [dense for dense, _ in pairs]
        buffer, payloads, spoilt, norms = self.take_from_sums_(pairs, checked, any(one.residual.weighs for one in sums))
        if spoilt is not None:
            finiteness.noted.append((names, spoilt))
        del pairs, checked  # an update may free what was added before it stores anew
        sums[0].feedback.keep_rests_(sums, payloads, rests, norms)
        return Message(names, self, payloads, buffer)

    def take_from_sums_(
        self, pairs: Sequence[tuple[Tensor, Tensor | None]], checked: Sequence[Tensor], weighs: bool = False
    ) -> tuple[Tensor, list[Payload], Tensor | None, Sequence[Tensor]]:
        """Add the second of each of the `pairs` to the first, and take out the largest magnitudes.

        For float32 on a CPU one call of compiled code does all, and reads each element once. On a GPU the number of
        launches does not depend on how many there are; NaN and infinity in what is `checked` count as zeros there.

        Returns:
            the buffer that holds all payloads, 1-D; the payloads; and, on a GPU, 1 for each pair of which a tensor
            counts as zeros, and 0 for each other, and with `weighs` what `sum_chunks` returns of the first tensors.
        """
        dense, added = map(list, zip(*pairs, strict=True))
        ks = [share(self.density, one.numel()) for one in dense]
        layouts = [((one.dtype, k), (index_dtype(one), k)) for one, k in zip(dense, ks, strict=True)]
        buffer, payloads = Payload.unfilled(layouts, dense)
        parts = [one.buffer for one in payloads]
        if in_one_launch(dense):
            from resireduce.kernels.gpu import bucket

            room, norms = bucket.room_for_norms(dense) if weighs else (None, ())
            return buffer, payloads, bucket.compress_topk_(pairs, ks, parts, checked, room), norms
        if not largest_each([*zip(dense, ks, added, parts, strict=True)]):
            add_where_(dense, added)
            for one, payload in zip(dense, payloads, strict=True):
                payload.buffer.copy_(self.compress(one, "", 0).buffer)
                self.error_(one, payload)
        return buffer, payloads, None, ()

    def combine_each_(self, targets: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], scale: float) -> None:
        sent = [
            (dense, [(payload.buffer, payload.layout[0][1]) for payload in own])
            for dense, own in zip(targets, payloads, strict=True)
        ]
        if self.half or self.coded or not add_sent_each_(sent, scale, zero=True):
            super().combine_each_(targets, payloads, scale)


@dataclass(frozen=True)
class RandomK(Selecting):
    """Sends k random elements, the same on all ranks: values alone travel, and are summed by an all-reduce.

    One element is drawn from each of k equal stretches, without scaling by n / k: biased, as error feedback wants it.

    Source: Random-k sparsification: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
    """

    collective: ClassVar[Collective] = "all_reduce"
    same_draw: ClassVar[bool] = True

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return k = max(1, floor(density x n)) values, whose places are drawn anew for every name and step."""
        n = grad.numel()
        indices = _drawn(n, share(self.density, n), (name, step), grad.device)
        return Payload.pack(grad.view(-1)[indices], like=grad, source=(name, step))

    def sent_indices(self, payload: Payload) -> Tensor:
        assert payload.source is not None
        return _drawn(payload.shape.numel(), payload.buffer.numel(), payload.source, payload.buffer.device)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        values = payload.buffer.to(dense.dtype)
        dense.view(-1).index_add_(0, self.sent_indices(payload), values, alpha=scale)
        return dense


def _drawn(numel: int, k: int, source: tuple[str, int], device: torch.device) -> Tensor:
    return one_of_each(numel, k, 0, k, generator(device, *source), device)
