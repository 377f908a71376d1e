"""Regions of a flat tensor, one for each rank, that divide what ranks have selected evenly, as in Ok-Topk."""

import torch
from torch import Tensor


def first_starts(numel: int, ranks: int, device: torch.device) -> Tensor:
    """Return where each of `ranks` equal regions of `numel` elements begins, and 0: 1-D int64 on `device`.

    The last number is the step, counted from 1, in which ranks have agreed on them; 0: none.
    """
    return torch.tensor([*(numel * rank // ranks for rank in range(ranks)), 0], dtype=torch.int64, device=device)


def proposed(mine: Tensor, starts: Tensor) -> Tensor:
    """Return a rank's proposal of regions, to be summed: where all but the first would begin to divide its ascending
    indices `mine` evenly, and 1. If it has none, zeros. `starts`: those that were agreed on last."""
    ranks = len(starts) - 1
    asked = starts.new_zeros(ranks)
    if len(mine):
        asked[:-1] = mine[torch.arange(1, ranks, device=mine.device) * len(mine) // ranks]
        asked[-1] = 1
    return asked


def agreed(total: Tensor, starts: Tensor, step: int) -> Tensor:
    """Return where regions begin, as the mean of the ranks' proposals, from their sum `total`, and last `step` + 1;
    `starts` themselves if no rank has proposed any. `step` is counted from 0."""
    count = total[-1:]
    found = torch.cat((starts[:1], total[:-1] // count.clamp(min=1), starts.new_tensor([step + 1])))
    return torch.where(count > 0, found, starts)


def counts(mine: Tensor, starts: Tensor) -> list[int]:
    """Return how many of the ascending indices `mine` lie in each region of `starts`; equally many without storage."""
    ranks = len(starts) - 1
    if mine.is_meta:
        cuts = [len(mine) * rank // ranks for rank in range(ranks)]
    else:
        cuts = torch.searchsorted(mine, starts[:-1].contiguous()).tolist()
    return [stop - start for start, stop in zip(cuts, [*cuts[1:], len(mine)], strict=True)]
