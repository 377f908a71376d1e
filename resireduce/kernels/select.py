"""Exact selection of the largest magnitudes in bounded extra memory."""

import torch
from torch import Tensor

CHUNK = 1 << 17
"""Elements looked at in one go. `torch.topk(x.abs())` on VGG-19's first fully connected layer would need a second copy
of its 392 MiB; in chunks it needs a few times the candidates, one in a hundred elements."""


def largest_magnitudes(flat: Tensor, k: int, chunk: int = CHUNK) -> Tensor:
    """Indices (int64, ascending) of the `k` elements of 1-D `flat` with the largest magnitude.

    Keeps the best `k` seen so far and lets each further chunk compete with them: exact, k + chunk magnitudes in memory.
    Which of several equal magnitudes at the border are chosen is not defined.
    """
    chunk = max(chunk, k)
    magnitudes, indices = torch.topk(flat[:chunk].abs(), min(k, flat.numel()), sorted=False)
    for start in range(chunk, flat.numel(), chunk):
        window = flat[start : start + chunk].abs()
        magnitudes, winners = torch.topk(torch.cat((magnitudes, window)), k, sorted=False)
        # A winner below k is one of the candidates so far, any other is element start + winner - k.
        indices = torch.where(winners < k, indices[winners.clamp(max=k - 1)], winners + (start - k))
    return indices.sort().values
