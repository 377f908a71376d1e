"""Top-k and random-k sparsification."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Collective, Compressor, Selecting, add_where_
from resireduce.compressors.packed import SparseCompressor
from resireduce.core.messages import Message, Payload, Round
from resireduce.kernels.ops import (
    add_sent_each_,
    in_one_launch,
    index_dtype,
    largest_each,
    largest_magnitudes,
    library_for,
)
from resireduce.pieces import generator, one_of_each, share

if TYPE_CHECKING:
    from resireduce.core.feedback import Finiteness, Sum
    from resireduce.residuals.base import Residual


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

    def sees_non_finite(self, like: Tensor) -> bool:
        return type(self) is TopK and not self.half and not self.coded and library_for(like) is not None

    @cached_property
    def _way(self) -> Callable[..., Message | Round]:
        """How a bucket is sent: at once, if elements travel as they are."""
        return Compressor.send if self.half or self.coded else type(self).send_at_once

    def send(self, sums: "Sequence[Sum]", finiteness: "Finiteness") -> Message | Round:
        return self._way(self, sums, finiteness)

    def send_at_once(self, sums: "Sequence[Sum]", finiteness: "Finiteness") -> Message:
        """Return the message of a bucket, whose `sums` are all formed and compressed at once.

        On a GPU the kernels that add gradients to residuals look for NaN.
        """
        checked = [one.gradient for one in sums if one.gradient is not None]
        looks = len(checked) == len(sums) and in_one_launch(checked)
        if not looks or not all(one.residual.only_adds(one.name) for one in sums):
            finiteness.look_later_(sums)
            checked = []
        pairs = [one.addends_() for one in sums]
        names, rests = [one.name for one in sums], [dense for dense, _ in pairs]
        residuals = [one.residual for one in sums]
        buffer, payloads, spoilt, norms, status = self.take_from_sums_(pairs, checked, residuals)
        if spoilt is not None:
            finiteness.noted.append((names, spoilt))
        if status != 1:
            finiteness.drop_(sums, payloads)
        del pairs, checked  # an update may free what was added before it stores anew
        sums[0].feedback.keep_rests_(sums, payloads, rests, norms)
        return Message(names, self, payloads, buffer)

    def take_from_sums_(
        self,
        pairs: Sequence[tuple[Tensor, Tensor | None]],
        checked: Sequence[Tensor],
        residuals: "Sequence[Residual]" = (),
    ) -> tuple[Tensor, list[Payload], Tensor | None, Sequence[Tensor], int]:
        """Add the second of each of the `pairs` to the first, and take out the largest magnitudes.

        For float32 on a CPU one call of compiled code does all, and reads each element once. On a GPU some launches do,
        and what is `checked` counts as zeros if it holds NaN or infinity.

        Returns:
            the buffer that holds all payloads, 1-D; the payloads; on a GPU, what `compress_topk_` returns, which weighs
            if one of the `residuals` does; and 1 if compiled code has found that all taken is finite, else 0 or 2.
        """
        dense, added = map(list, zip(*pairs, strict=True))
        ks = [share(self.density, one.numel()) for one in dense]
        layouts = [((one.dtype, k), (index_dtype(one), k)) for one, k in zip(dense, ks, strict=True)]
        buffer, payloads = Payload.unfilled(layouts, dense)
        parts = [one.buffer for one in payloads]
        if in_one_launch(dense):
            from resireduce.kernels.gpu import bucket

            weighs = any(one.weighs for one in residuals)
            return buffer, payloads, *bucket.compress_topk_(pairs, ks, parts, checked, weighs), 0
        if not (status := largest_each([*zip(dense, ks, added, parts, strict=True)])):
            add_where_(dense, added)
            for one, payload in zip(dense, payloads, strict=True):
                payload.buffer.copy_(self.compress(one, "", 0).buffer)
                self.error_(one, payload)
        return buffer, payloads, None, (), status

    def combine_each_(self, targets: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], scale: float) -> None:
        if not add_sent_each_([*zip(targets, payloads, strict=True)], scale, zero=True):
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
