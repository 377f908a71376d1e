"""Orthonormal vectors, by Gram and Schmidt."""

import torch
from torch import Tensor

ROUNDING = 10
"""Units of rounding: a vector of which projection leaves less than this part counts as dependent on the others."""


def orthonormal(rows: Tensor) -> Tensor:
    """Return a new matrix whose rows span what those of `rows` do, orthonormal, in the same order and dtype.

    A row that depends on those before it, or is zero, becomes zero. Each is projected twice, since one projection
    leaves nearly dependent rows far from orthogonal. Elements may be so small or large that their squares leave the
    dtype's range. There is no product of matrices, which autocast would round, and the host does not wait for the
    device.
    """
    largest = rows.abs().amax(1, keepdim=True)
    scaled, basis = rows / torch.where(largest > 0, largest, 1), torch.zeros_like(rows)
    smallest = ROUNDING * torch.finfo(rows.dtype).eps
    for number, row in enumerate(scaled):
        before, left = basis[:number], row
        for _ in range(2):
            left = left - (before * (before * left).sum(1, keepdim=True)).sum(0)
        length = torch.linalg.vector_norm(left)
        basis[number] = torch.where(length > smallest * torch.linalg.vector_norm(row), left / length, 0)
    return basis
