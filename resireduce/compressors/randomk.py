"""Random-k sparsification: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.base import Collective, Selecting
from resireduce.core.payload import Payload
from resireduce.pieces import generator, one_of_each, share


@dataclass(frozen=True)
class RandomK(Selecting):
    """Sends k random elements, the same on all ranks: values alone travel, and are summed by an all-reduce.

    One element is drawn from each of k equal stretches, without scaling by n / k: biased, as error feedback wants it.
    """

    collective: ClassVar[Collective] = "all_reduce"
    same_draw: ClassVar[bool] = True

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return k = max(1, floor(density x n)) values, whose places are drawn anew for every name and step."""
        flat = grad.view(-1)
        indices = _draw(flat.numel(), share(self.density, flat.numel()), (name, step), grad.device)
        return Payload.pack(flat[indices], like=grad, source=(name, step))

    def sent_indices(self, payload: Payload) -> Tensor:
        """Return the flat indices that were drawn for the payload: 1-D, int64, ascending."""
        return _indices(payload)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the values to their places in `dense`; indices do not repeat. Return `dense`."""
        dense.view(-1).index_add_(0, _indices(payload), payload.buffer.to(dense.dtype), alpha=scale)
        return dense


def _indices(payload: Payload) -> Tensor:
    """Draw the indices of a payload again, instead of keeping them from the backward pass to the step."""
    assert payload.source is not None
    return _draw(payload.shape.numel(), payload.buffer.numel(), payload.source, payload.buffer.device)


def _draw(numel: int, k: int, source: tuple[str, int], device: torch.device) -> Tensor:
    return one_of_each(numel, k, 0, k, generator(device, *source), device)
