"""Orthonormal vectors, by Gram and Schmidt."""

import torch
from torch import Tensor

ROUNDING = 10
"""Units of rounding that are left of a vector which depends on others: what is shorter is taken for nothing."""


def orthonormal(rows: Tensor) -> Tensor:
    """Return a new matrix whose rows span what those of `rows` do, orthonormal, in the same order and dtype.

    A row that depends on those before it, or is zero, becomes zero. Each is projected twice, since once leaves rows
    that are nearly dependent far from orthogonal. No element is too small or too large to be squared. Nothing of it is
    a product of matrices, which autocast would round, and nothing waits for the device.
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
