"""Selection of the magnitudes that reach a threshold, in bounded extra memory."""

import torch
from torch import Tensor

from resireduce.blocks import pieces


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


def reaching_or_largest(flat: Tensor, threshold: float) -> Tensor:
    """As `reaching` of `flat` and `threshold`, strictly; if none is, the elements of the largest magnitude."""
    found = reaching(flat, threshold, strictly=True)
    return found if len(found) else reaching(flat, torch.linalg.vector_norm(flat, torch.inf))
