"""Exact selection of the largest magnitudes in bounded extra memory."""

import torch
from torch import Tensor

ROUNDS = 16
"""A tensor is looked at in at most this many pieces: `torch.topk(x.abs())` on VGG-19's first fully connected layer would
need a second copy of its 392 MiB, a piece needs a sixteenth."""

SMALLEST = 1 << 16
"""Elements below which a piece is not worth its launch."""


def largest_magnitudes(flat: Tensor, k: int, piece: int | None = None) -> Tensor:
    """Indices (int64, ascending) of the `k` elements of 1-D `flat` with the largest magnitude.

    Keeps the best `k` seen so far and lets each further `piece` of elements compete with them: exact, with k + piece
    magnitudes in memory. Which of several equal magnitudes at the border are chosen is not defined.
    """
    piece = max(k, piece or max(SMALLEST, -(-flat.numel() // ROUNDS)))
    magnitudes, indices = torch.topk(flat[:piece].abs(), min(k, flat.numel()), sorted=False)
    for start in range(piece, flat.numel(), piece):
        window = flat[start : start + piece].abs()
        magnitudes, winners = torch.topk(torch.cat((magnitudes, window)), k, sorted=False)
        # A winner below k is one of the candidates so far, any other is element start + winner - k.
        indices = torch.where(winners < k, indices[winners.clamp(max=k - 1)], winners + (start - k))
    return indices.sort().values
