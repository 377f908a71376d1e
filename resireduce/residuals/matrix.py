"""Residuals of specific layers: some rows of each, or where some rows cross some columns."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.errors import choose
from resireduce.kernels.norms import l1_norms
from resireduce.kernels.packed_largest import Addend
from resireduce.kernels.submatrix import Crossing, cut_crossing, cut_largest
from resireduce.pieces import share
from resireduce.residuals.base import CHOICES, NORMS, Ratio, Residual, matrix_shape, named, norm_dtype, select
from resireduce.residuals.stored import Plain, Stored


@dataclass
class _Rows:
    values: Stored  # (rows kept, columns)
    rows: Tensor  # int32, ascending
    n_rows: int  # of the matrix


def _row_norms(matrix: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrix, 1, dim=1, dtype=norm_dtype(matrix))


class RowsResidual(Residual):
    """Stores the rows of the residual with the largest L1 norms.

    A tensor is seen as a matrix (first dimension, all others). max(1, floor(row_ratio x rows)) rows are kept.

    Args:
        row_ratio: share of the rows, or {pattern of names: share}.
        norms, choice: as in RowsColumnsResidual.

    Raises ConfigError for other values.

    Source: ResiReduce-d: some rows of a specific layer's residual (paper, section 4.3, Fig. 7b).
    """

    def __init__(
        self, *, row_ratio: object = 0.25, norms: str = "residual", choice: str = "largest", **options: object
    ):
        super().__init__(**options)  # type: ignore[arg-type]
        self.row_ratio = Ratio("row_ratio", row_ratio)
        self.norms, self.choice = choose("norms", norms, NORMS), choose("choice", choice, CHOICES)
        self._stored: dict[str, _Rows] = {}
        self._norms: dict[str, Tensor] = {}  # of what is being compressed

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate zeros for the first rows, so that the bytes are the same from the first step on."""
        n_rows, n_columns = matrix_shape(name, parameter)
        rows = torch.arange(share(self.row_ratio.of(name), n_rows), dtype=torch.int32, device=parameter.device)
        self._stored[name] = _Rows(self.stored((len(rows), n_columns), parameter), rows, n_rows)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Add the rows to their places in the gradient, in place; return it."""
        stored = self._stored[name]
        matrix = grad.view(len(grad), -1).index_add_(0, stored.rows, stored.values.read(grad.dtype))
        if self.norms == "compensated":
            self._norms[name] = _row_norms(matrix)
        return grad

    def leaves_stored(self, name: str) -> bool:
        """Return True, unless `compensate_` is a subclass' own: remembered norms are replaced in the next step."""
        return type(self).compensate_ is RowsResidual.compensate_

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Choose rows of the error anew, and store them."""
        left = error()
        stored, matrix = self._stored[name], left.view(len(left), -1)
        stored.values.release()
        norms = _row_norms(matrix) if self.norms == "residual" else self._norms.pop(name)
        stored.rows = select(norms, len(stored.rows), self.choice, self.source(f"{name}/rows", left, step))
        stored.values.set_(matrix.index_select(0, stored.rows), self.source(name, left, step))

    def stored_for(self, name: str) -> Stored:
        """Return the stored rows of tensor `name`."""
        return self._stored[name].values

    def tensors(self) -> dict[str, Tensor]:
        """Return the rows and their numbers (int32), for each registered tensor."""
        values = named("rows", {name: stored.values for name, stored in self._stored.items()})
        return values | {f"rows.{name}.rows": stored.rows for name, stored in self._stored.items()}


@dataclass
class _Block:
    values: Stored  # (rows kept, columns kept)
    rows: Tensor  # int32, ascending
    columns: Tensor  # int32, ascending
    n_rows: int  # of the matrix

    def read(self, dtype: torch.dtype) -> Crossing:
        return Crossing(self.values.read(dtype), self.rows, self.columns, self.n_rows)

    def held(self, dtype: torch.dtype) -> Crossing | None:
        """Return the block in the memory in which it is stored, if that holds numbers of `dtype`."""
        if type(self.values) is not Plain or self.values.values.dtype != dtype:
            return None
        return Crossing(self.values.values, self.rows, self.columns, self.n_rows)


class RowsColumnsResidual(Residual):
    """Stores the residual where rows of the largest L1 norms cross columns of the largest L1 norms.

    A tensor is seen as a matrix (first dimension, all others). max(1, floor(ratio x size)) rows and columns are kept:
    with the default ratios, a quarter of the elements.

    Args:
        row_ratio, column_ratio: share of the rows and of the columns, or {pattern of names: share}.
        norms: of the "residual" (the paper) or of the "compensated" gradient (the released code).
        choice: the "largest" (the paper), or drawn with their "softmax" as probabilities (the released code).

    Raises ConfigError for other values.

    Source: ResiReduce-2d: a sub-matrix of a specific layer's residual (paper, section 4.3, Fig. 7c).
    """

    def __init__(
        self,
        *,
        row_ratio: object = 0.5,
        column_ratio: object = 0.5,
        norms: str = "residual",
        choice: str = "largest",
        **options: object,
    ):
        super().__init__(**options)  # type: ignore[arg-type]
        self.row_ratio, self.column_ratio = Ratio("row_ratio", row_ratio), Ratio("column_ratio", column_ratio)
        self.norms, self.choice = choose("norms", norms, NORMS), choose("choice", choice, CHOICES)
        self._blocks: dict[str, _Block] = {}
        self._norms: dict[str, tuple[Tensor, Tensor]] = {}  # of what is being compressed

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate a block of zeros for the first rows and columns: the bytes are the same from the first step on."""
        n_rows, n_columns = matrix_shape(name, parameter)
        rows = torch.arange(share(self.row_ratio.of(name), n_rows), dtype=torch.int32, device=parameter.device)
        columns = torch.arange(share(self.column_ratio.of(name), n_columns), dtype=torch.int32, device=parameter.device)
        self._blocks[name] = _Block(self.stored((len(rows), len(columns)), parameter), rows, columns, n_rows)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Add the block to its place in the gradient, in place; return it."""
        block, matrix = self._blocks[name], grad.view(len(grad), -1)
        block.read(grad.dtype).add_to_(grad)
        if self.norms == "compensated":
            self._norms[name] = l1_norms(matrix, norm_dtype(matrix))
        return grad

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Addend] | None:
        """Return `grad` and the block of tensor `name`; None, if that must be decoded, or norms are of the sum."""
        if type(self).compensate_ is not RowsColumnsResidual.compensate_ or self.norms != "residual":
            return None
        crossing = self._blocks[name].held(grad.dtype)
        return None if crossing is None or not grad.is_contiguous() else (grad, crossing)

    def leaves_stored(self, name: str) -> bool:
        """Return True, unless `compensate_` is a subclass' own: norms that are remembered are replaced by the next."""
        return type(self).compensate_ is RowsColumnsResidual.compensate_

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Choose rows and columns of the error anew, and store the elements where they cross."""
        left = error()
        block, matrix = self._blocks[name], left.view(len(left), -1)
        block.values.release()
        if (self.norms, self.choice) == ("residual", "largest"):
            sizes = len(block.rows), len(block.columns)
            block.rows = block.columns = block.rows.new_empty(0)  # free before others are made
            block.rows, block.columns, values = cut_largest(matrix, *sizes)
        else:
            if self.norms == "residual":
                self._norms[name] = l1_norms(matrix, norm_dtype(matrix))
            block.rows, block.columns = self._chosen(name, left, step)
            values = cut_crossing(matrix, block.rows, block.columns)
        block.values.set_(values, self.rounding(name, left, step))

    def _chosen(self, name: str, like: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the rows and the columns that are to be stored, by their norms."""
        block, (of_rows, of_columns) = self._blocks[name], self._norms.pop(name)
        rows = select(of_rows, len(block.rows), self.choice, self.source(f"{name}/rows", like, step))
        return rows, select(of_columns, len(block.columns), self.choice, self.source(f"{name}/columns", like, step))

    def stored_for(self, name: str) -> Stored:
        """Return the stored block of tensor `name`."""
        return self._blocks[name].values

    def tensors(self) -> dict[str, Tensor]:
        """Return the block, its row numbers and its column numbers (int32), for each registered tensor."""
        held = named("rows_columns", {name: block.values for name, block in self._blocks.items()})
        for name, block in self._blocks.items():
            held[f"rows_columns.{name}.rows"] = block.rows
            held[f"rows_columns.{name}.columns"] = block.columns
        return held
