"""Exact selection of the largest magnitudes in bounded extra memory."""

from collections.abc import Callable

import torch
from torch import Tensor

ROUNDS = 16
"""A tensor is looked at in at most this many pieces: `torch.topk(x.abs())` on VGG-19's first fully connected layer
would need a second copy of its 392 MiB, a piece needs a sixteenth."""

SMALLEST = 1 << 16
"""Elements below which a piece is not worth its launch."""


def largest_magnitudes(flat: Tensor, k: int, piece: int | None = None) -> Tensor:
    """Indices (int64, ascending) of the `k` elements of 1-D `flat` with the largest magnitude.

    Keeps the best `k` seen so far and lets each further `piece` of elements compete with them: exact, with k + piece
    magnitudes in memory. Which of several equal magnitudes at the border are chosen is not defined.
    """
    piece = max(k, piece or max(SMALLEST, -(-flat.numel() // ROUNDS)))
    magnitudes, indices = _largest(flat[:piece].abs, min(k, flat.numel()))
    for start in range(piece, flat.numel(), piece):
        rest, best = flat[start : start + piece], magnitudes
        magnitudes, winners = _largest(lambda best=best, rest=rest: torch.cat((best, rest.abs())), k)  # type: ignore[misc]
        # A winner below k is one of the candidates so far, any other is element start + winner - k.
        indices = torch.where(winners < k, indices[winners.clamp(max=k - 1)], winners + (start - k))
    return indices.sort().values


def _largest(candidates: Callable[[], Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of the 1-D tensor that `candidates` makes, in no order, and their indices."""
    values = candidates()
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        chosen = torch.topk(values, k, sorted=False)
        return chosen.values, chosen.indices
    # On a CPU NumPy finds the k-th largest in a quarter of the time of torch.topk. It works within the tensor, whose
    # order is lost, so that no memory is taken that a measurement of tensors would miss.
    values.numpy().partition(values.numel() - k)
    border = values[values.numel() - k].item()
    del values
    values = candidates()
    above = (values > border).nonzero().view(-1)
    equal = (values == border).nonzero().view(-1)
    indices = torch.cat((above, equal[: k - above.numel()]))
    return values[indices], indices
