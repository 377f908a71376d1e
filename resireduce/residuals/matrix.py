"""Residuals of specific layers: some rows of each, or where some rows cross some columns."""

from collections.abc import Callable

import torch
from torch import Tensor

from resireduce.errors import ConfigError, check_share, choose
from resireduce.kernels.ops import DTYPES, in_triton, l1_norms
from resireduce.pieces import PIECES, generator, share
from resireduce.residuals.base import CHOICES, NORMS, Residual, norm_dtype, select

# --- The elements of a matrix where some rows cross some columns ---


def add_crossing_(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> None:
    """Add 2-D `values` to where 1-D `rows` cross 1-D `columns` (int32, ascending) of contiguous 2-D `matrix`, in place.

    Plain torch goes through whole rows, few of them at a time: where operations must be deterministic, a GPU
    would write single elements after sorting their indices, which takes several times the memory of the matrix.
    """
    if _in_triton(matrix, rows, columns, values):
        from resireduce.kernels.gpu import one_pass

        one_pass.add_crossing_(matrix, rows, columns, values)
        return
    places = columns.long()
    for some, part in zip(rows.tensor_split(2 * PIECES), values.tensor_split(2 * PIECES), strict=True):
        whole = matrix.index_select(0, some).index_add_(1, places, part.to(matrix.dtype))
        matrix.index_copy_(0, some.long(), whole)


def cut_crossing(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return a copy of contiguous 2-D `matrix` where 1-D `rows` cross 1-D `columns` (int32, ascending): 2-D.

    Plain torch copies whole rows, few of them at a time: single elements would take four times as long.
    """
    values = matrix.new_empty(len(rows), len(columns))
    if _in_triton(matrix, rows, columns, values):
        from resireduce.kernels.gpu import one_pass

        one_pass.cut_crossing_into(values, matrix, rows, columns)
        return values
    for some, part in zip(rows.tensor_split(2 * PIECES), values.tensor_split(2 * PIECES), strict=True):
        torch.index_select(matrix.index_select(0, some), 1, columns, out=part)
    return values


def _in_triton(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> bool:
    """Whether Triton's kernels take these tensors: indices of int32, values of one of their dtypes."""
    known = rows.dtype == columns.dtype == torch.int32 and values.dtype in DTYPES
    return known and in_triton(matrix, rows, columns, values)


# --- Residuals ---


def _kept(ratio: float, name: str, parameter: Tensor, dim: int) -> Tensor:
    """Return the first numbers of as many rows (`dim` 0) or columns (1) of tensor `name` as are kept: int32.

    A tensor is seen as a matrix: its first dimension, and all others. Raises ConfigError if it is 1-D.
    """
    if parameter.dim() < 2:
        raise ConfigError(
            f"scheme: rows of {name!r} cannot be stored, since its slice has none: it has fewer rows than a node has "
            "ranks; leave it out of the specific layers (groups=...), or give hierarchy='flat'"
        )
    size = parameter.shape[1:].numel() if dim else parameter.shape[0]
    return torch.arange(share(ratio, size), dtype=torch.int32, device=parameter.device)


class RowsResidual(Residual):
    """Stores the rows of the residual with the largest L1 norms.

    A tensor is seen as a matrix (first dimension, all others). max(1, floor(row_ratio x rows)) rows are kept.

    Args:
        row_ratio: share of the rows.
        norms, choice: as in RowsColumnsResidual.

    Raises ConfigError for other values.

    Source: ResiReduce-d: some rows of a specific layer's residual (paper, section 4.3, Fig. 7b).
    """

    kind = "rows"

    def __init__(self, *, row_ratio: float = 0.25, norms: str = "residual", choice: str = "largest", **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.row_ratio = check_share("row_ratio", row_ratio)
        self.norms, self.choice = choose("norms", norms, NORMS), choose("choice", choice, CHOICES)
        self._rows: dict[str, Tensor] = {}
        """The numbers of the rows that are stored of each tensor, int32, ascending."""
        self._norms: dict[str, tuple[Tensor, ...]] = {}
        """With norms="compensated": those of each gradient under way, of its rows, or of its rows and columns."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate zeros for the first rows, so that the bytes are the same from the first step on."""
        rows = self._rows[name] = _kept(self.row_ratio, name, parameter, 0)
        self._stored[name] = self.stored((len(rows), parameter.shape[1:].numel()), parameter)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        matrix = grad.view(len(grad), -1)
        self._add_(matrix, name, self._stored[name].read(grad.dtype))
        if self.norms == "compensated":
            self._norms[name] = self._norms_of(matrix)
        return grad

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        left = error()
        matrix = left.view(len(left), -1)
        self._stored[name].release()
        (norms,) = self._norms.pop(name, None) or self._norms_of(matrix)
        self._rows[name] = self._chosen(norms, len(self._rows[name]), f"{name}/rows", step)
        self._stored[name].set_(matrix.index_select(0, self._rows[name]), self.source(name, left, step))

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {f"{self.kind}.{name}.rows": rows for name, rows in self._rows.items()}

    def _add_(self, matrix: Tensor, name: str, values: Tensor) -> None:
        matrix.index_add_(0, self._rows[name], values)

    def _norms_of(self, matrix: Tensor) -> tuple[Tensor, ...]:
        return (torch.linalg.vector_norm(matrix, 1, dim=1, dtype=norm_dtype(matrix)),)

    def _chosen(self, norms: Tensor, count: int, drawn_from: str, step: int) -> Tensor:
        """Return the numbers of `count` rows or columns, chosen by their `norms`."""
        draws = self.choice != "largest"
        source = generator(norms.device, f"{drawn_from}/{self.rank}", step) if draws else None
        return select(norms, count, self.choice, source)


class RowsColumnsResidual(RowsResidual):
    """Stores the residual where rows of the largest L1 norms cross columns of the largest L1 norms.

    A tensor is seen as a matrix (first dimension, all others). max(1, floor(ratio x size)) rows and columns are kept:
    with the default ratios, a quarter of the elements.

    Args:
        row_ratio, column_ratio: share of the rows and of the columns.
        norms: of the "residual" (the paper) or of the "compensated" gradient (the released code).
        choice: the "largest" (the paper), or drawn with their "softmax" as probabilities (the released code).

    Raises ConfigError for other values.

    Source: ResiReduce-2d: a sub-matrix of a specific layer's residual (paper, section 4.3, Fig. 7c).
    """

    kind = "rows_columns"

    def __init__(
        self,
        *,
        row_ratio: float = 0.5,
        column_ratio: float = 0.5,
        norms: str = "residual",
        choice: str = "largest",
        **options: object,
    ):
        super().__init__(row_ratio=row_ratio, norms=norms, choice=choice, **options)
        self.column_ratio = check_share("column_ratio", column_ratio)
        self._columns: dict[str, Tensor] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        rows = self._rows[name] = _kept(self.row_ratio, name, parameter, 0)
        columns = self._columns[name] = _kept(self.column_ratio, name, parameter, 1)
        self._stored[name] = self.stored((len(rows), len(columns)), parameter)

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        left = error()
        matrix, sizes = left.view(len(left), -1), (len(self._rows[name]), len(self._columns[name]))
        self._stored[name].release()
        self._rows[name] = self._columns[name] = matrix.new_empty(0)  # free before others are made
        norms_of = self._norms.pop(name, None) or self._norms_of(matrix)
        rows = self._chosen(norms_of[0], sizes[0], f"{name}/rows", step)
        columns = self._chosen(norms_of[1], sizes[1], f"{name}/columns", step)
        del norms_of
        self._rows[name], self._columns[name] = rows, columns
        self._stored[name].set_(cut_crossing(matrix, rows, columns), self.source(name, left, step))

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {f"{self.kind}.{name}.columns": columns for name, columns in self._columns.items()}

    def _add_(self, matrix: Tensor, name: str, values: Tensor) -> None:
        add_crossing_(matrix, self._rows[name], self._columns[name], values)

    def _norms_of(self, matrix: Tensor) -> tuple[Tensor, ...]:
        return l1_norms(matrix, norm_dtype(matrix))
