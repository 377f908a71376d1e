"""Orthonormal columns, by Gram and Schmidt."""

import torch
from torch import Tensor

ROUNDING = 10
"""Units of rounding that are left of a column which depends on others: what is shorter is taken for nothing."""


def orthonormal(columns: Tensor) -> Tensor:
    """Return a new matrix whose columns span what those of `columns` do, orthonormal, in the same order and dtype.

    A column that depends on those before it, or is zero, becomes zero. Each is projected twice, since once leaves
    columns that are nearly dependent far from orthogonal. No element is too small or too large to be squared. Nothing
    of it is a product of matrices, which autocast would round, and nothing waits for the device.
    """
    largest = columns.abs().amax(0)
    scaled, basis = columns / torch.where(largest > 0, largest, 1), torch.zeros_like(columns)
    smallest = ROUNDING * torch.finfo(columns.dtype).eps
    for number in range(columns.shape[1]):
        column, before = scaled[:, number], basis[:, :number]
        length = torch.linalg.vector_norm(column)
        for _ in range(2):
            column = column - (before * (before * column.unsqueeze(1)).sum(0)).sum(1)
        left = torch.linalg.vector_norm(column)
        basis[:, number] = torch.where(left > smallest * length, column / left, 0)
    return basis
