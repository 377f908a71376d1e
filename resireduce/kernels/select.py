"""Exact selection of the largest magnitudes in bounded extra memory."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from resireduce.blocks import pieces

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
    starts = range(piece, flat.numel(), piece)
    # Without storage there are no values to compare: two rounds show a plan the memory of them all.
    for start in starts[:2] if flat.is_meta else starts:
        magnitudes, winners = _largest(partial(_joined, magnitudes, flat[start : start + piece]), k)
        # A winner below k is one of the candidates so far, any other is element start + winner - k.
        indices = torch.where(winners < k, indices.gather(0, winners % k), winners + (start - k))
    return indices.sort().values


def reaching(flat: Tensor, threshold: Tensor | float, strictly: bool = False) -> Tensor:
    """Indices (int64, ascending) of the elements of 1-D `flat` whose magnitude is `threshold` or, `strictly`, more.

    Zeros are never among them. A sixteenth at a time, so that magnitudes of all are never in memory at once.
    """
    found = few_reaching(flat, threshold, flat.numel(), strictly)
    assert found is not None
    return found


def few_reaching(flat: Tensor, threshold: Tensor | float, most: int, strictly: bool = False) -> Tensor | None:
    """As `reaching` of `flat`, `threshold` and `strictly`, but None if there are more than `most`.

    The indices of all elements would take twice the memory of `flat`. That there are more is found out before they take
    more than those of `most` elements and a sixteenth.
    """
    compare = torch.gt if strictly or not threshold else torch.ge
    found, count = [], 0
    for piece in pieces(flat.numel()):
        found.append(compare(flat[piece].abs(), threshold).nonzero().view(-1).add_(piece.start))
        count += len(found[-1])
        if count > most:
            return None
    return torch.cat(found)


def _joined(magnitudes: Tensor, rest: Tensor) -> Tensor:
    return torch.cat((magnitudes, rest.abs()))


def _largest(candidates: Callable[[], Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of the 1-D tensor that `candidates` makes, in no order, and their indices."""
    values = candidates()
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        chosen = torch.topk(values, k, sorted=False)
        return chosen.values, chosen.indices
    # On a CPU NumPy takes a quarter of the time of torch.topk. It works within tensors, so that no memory is taken that
    # a measurement of tensors would miss; partition loses their order.
    values.numpy().partition(values.numel() - k)
    border = values[values.numel() - k].item()
    del values
    values = candidates()
    reaches = torch.empty(values.shape, dtype=torch.bool)
    _reaching(values.numpy(), border, k, reaches.numpy())
    indices = torch.from_numpy(np.flatnonzero(reaches.numpy()))
    return values[indices], indices


def _reaching(values: np.ndarray, border: float, k: int, out: np.ndarray) -> None:
    """Mark in `out` the `k` values of `border` or more: of several that are the border, the last.

    Needs no memory, however many there are: what a step holds at its fullest moment is the same for all values.
    """
    np.greater_equal(values, border, out=out)
    surplus = int(np.count_nonzero(out)) - k
    if surplus > 0:
        np.equal(values, border, out=out)
        end = _place(out, surplus) + 1
        np.greater(values[:end], border, out=out[:end])
        np.greater_equal(values[end:], border, out=out[end:])


def _place(mask: np.ndarray, number: int) -> int:
    """Where the `number`-th True is, counted from 1; each half is counted once, and so on within it."""
    start, stop = 0, mask.size
    while stop - start > 1:
        middle = (start + stop) // 2
        before = int(np.count_nonzero(mask[start:middle]))
        start, stop, number = (start, middle, number) if number <= before else (middle, stop, number - before)
    return start
