"""Selection of the magnitudes that reach a threshold, in bounded extra memory."""

import torch
from torch import Tensor

from resireduce.blocks import pieces


def reaching(flat: Tensor, threshold: Tensor | float, strictly: bool = False) -> Tensor:
    """Return the indices (int64, ascending) of elements of 1-D `flat` whose magnitude is at least `threshold`; with
    `strictly`, more.

    Zeros are never among them. A sixteenth is processed at a time, so that all magnitudes are never in memory at once.
    """
    found = few_reaching(flat, threshold, flat.numel(), strictly)
    assert found is not None
    return found


def few_reaching(flat: Tensor, threshold: Tensor | float, most: int, strictly: bool = False) -> Tensor | None:
    """Return what `reaching` does for `flat`, `threshold` and `strictly`, or None if there are more than `most`.

    The indices of all elements would take twice the memory of `flat`. It stops before it holds more than those of
    `most` elements and a sixteenth of the tensor.
    """
    compare = torch.gt if strictly or not threshold else torch.ge
    found, count = [], 0
    for piece in pieces(flat.numel()):
        found.append(compare(flat[piece].abs(), threshold).nonzero().view(-1).add_(piece.start))
        count += len(found[-1])
        if count > most:
            return None
    return torch.cat(found)


def reaching_or_largest(flat: Tensor, threshold: float) -> Tensor:
    """Return what `reaching` does for `flat` and `threshold`, strictly; if nothing, the largest magnitudes."""
    found = reaching(flat, threshold, strictly=True)
    return found if len(found) else reaching(flat, torch.linalg.vector_norm(flat, torch.inf))
