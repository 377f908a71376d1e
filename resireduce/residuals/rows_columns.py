"""ResiReduce-2d: a sub-matrix of a specific layer's residual (paper, section 4.3, Fig. 7c)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.errors import check_share
from resireduce.residuals.base import Residual, largest, named, norm_dtype
from resireduce.residuals.stored import Stored
from resireduce.share import share


@dataclass
class _Block:
    values: Stored  # (rows kept, columns kept)
    rows: Tensor  # int32, ascending
    columns: Tensor  # int32, ascending

    def index(self) -> tuple[Tensor, Tensor]:
        return self.rows[:, None], self.columns


class RowsColumnsResidual(Residual):
    """Stores the residual where rows of the largest L1 norms cross columns of the largest L1 norms.

    A tensor is seen as a matrix (first dimension, all others). max(1, floor(ratio x size)) rows and columns are kept:
    with the default ratios, a quarter of the elements. Norms are those of the residual, and the largest are taken; the
    released code differs in both.
    """

    def __init__(self, *, row_ratio: float = 0.5, column_ratio: float = 0.5, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.row_ratio = check_share("row_ratio", row_ratio)
        self.column_ratio = check_share("column_ratio", column_ratio)
        self._blocks: dict[str, _Block] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """A block of zeros with the first rows and columns: the bytes are the same from the first step on."""
        n_rows, n_columns = parameter.flatten(1).shape
        rows = torch.arange(share(self.row_ratio, n_rows), dtype=torch.int32, device=parameter.device)
        columns = torch.arange(share(self.column_ratio, n_columns), dtype=torch.int32, device=parameter.device)
        self._blocks[name] = _Block(self.stored((len(rows), len(columns)), parameter), rows, columns)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Add the block to its place in the gradient, in place."""
        block, matrix = self._blocks[name], grad.view(len(grad), -1)
        matrix[block.index()] = block.values.add_to_(matrix[block.index()])
        return grad

    def update(self, name: str, error: Callable[[], Tensor]) -> None:
        """Choose rows and columns anew, and keep what is there."""
        left = error()
        block, matrix = self._blocks[name], left.view(len(left), -1)
        wide = norm_dtype(left)
        block.values.release()
        block.rows = largest(torch.linalg.vector_norm(matrix, 1, dim=1, dtype=wide), len(block.rows))
        block.columns = largest(torch.linalg.vector_norm(matrix, 1, dim=0, dtype=wide), len(block.columns))
        block.values.set_(matrix[block.index()], self.source(name, left))

    def tensors(self) -> dict[str, Tensor]:
        """The block, its row numbers and its column numbers, for each registered tensor."""
        held = named("rows_columns", {name: block.values for name, block in self._blocks.items()})
        for name, block in self._blocks.items():
            held[f"rows_columns.{name}.rows"] = block.rows
            held[f"rows_columns.{name}.columns"] = block.columns
        return held
