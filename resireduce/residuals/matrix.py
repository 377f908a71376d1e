"""Residuals of specific layers: some rows of each, or where some rows cross some columns."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from resireduce.errors import ConfigError, check_share, choose
from resireduce.kernels.ops import cross, l1_norms
from resireduce.pieces import PIECES, share
from resireduce.residuals.base import CHOICES, NORMS, Residual, norm_dtype, select


def add_crossing_(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> None:
    """Add 2-D `values` to where 1-D `rows` cross 1-D `columns` (int32, ascending) of contiguous 2-D `matrix`, in place.

    Plain torch goes through whole rows, few of them at a time: where operations must be deterministic, a GPU
    would write single elements after sorting their indices, which takes several times the memory of the matrix.
    """
    if cross(matrix, rows, columns, values, adds=True):
        return
    places = columns.long()
    for some, part in zip(rows.tensor_split(2 * PIECES), values.tensor_split(2 * PIECES), strict=True):
        whole = matrix.index_select(0, some).index_add_(1, places, part.to(matrix.dtype))
        matrix.index_copy_(0, some.long(), whole)


def cut_crossing(matrix: Tensor, rows: Tensor, columns: Tensor, room: Tensor | None = None) -> Tensor:
    """Return a copy of contiguous 2-D `matrix` where 1-D `rows` cross 1-D `columns` (int32, ascending): 2-D.

    Plain torch copies whole rows, few of them at a time: single elements would take four times as long. room: memory
    for the copy.
    """
    values = matrix.new_empty(len(rows), len(columns)) if room is None else room
    if cross(matrix, rows, columns, values, adds=False):
        return values
    for some, part in zip(rows.tensor_split(2 * PIECES), values.tensor_split(2 * PIECES), strict=True):
        torch.index_select(matrix.index_select(0, some), 1, columns, out=part)
    return values


class RowsResidual(Residual):
    """Stores the rows of the residual with the largest L1 norms.

    A tensor is seen as a matrix (first dimension, all others). max(1, floor(row_ratio x rows)) rows are kept.

    Args:
        row_ratio: share of the rows.
        norms, choice: as in RowsColumnsResidual.

    Raises ConfigError for other values.

    Source: ResiReduce-d: some rows of a specific layer's residual (paper, section 4.3, Fig. 7b).
    """

    KEPT: tuple[str, ...] = ("rows",)
    _add_: ClassVar[Any] = staticmethod(lambda matrix, rows, values: matrix.index_add_(0, rows, values))
    _cut: ClassVar[Any] = staticmethod(lambda matrix, rows, room: torch.index_select(matrix, 0, rows, out=room))
    _norms_of: ClassVar[Any] = staticmethod(lambda matrix, dtype: (vector_norm(matrix, 1, dim=1, dtype=dtype),))
    """What adds to a matrix where it is stored, cuts that from it, and returns the norms by which it is chosen."""

    def __init__(self, *, row_ratio: float = 0.25, norms: str = "residual", choice: str = "largest", **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.ratios: tuple[float, ...] = (check_share("row_ratio", row_ratio),)
        self.norms, self.choice = choose("norms", norms, NORMS), choose("choice", choice, CHOICES)
        self._kept: dict[str, list[Tensor]] = {}
        """The numbers of rows, or of rows and of columns, that are stored of each tensor: int32, ascending."""
        self._norms: dict[str, Sequence[Tensor]] = {}
        """With norms="compensated": those of each gradient under way, of its rows, or of its rows and columns."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate zeros for the first rows, so that the bytes are the same from the first step on.

        Raises ConfigError if `parameter` is 1-D.
        """
        if parameter.dim() < 2:
            raise ConfigError(
                f"scheme: rows of {name!r} cannot be stored, since its slice has none: it has fewer rows than a node "
                "has ranks; leave it out of the specific layers (groups=...), or give hierarchy='flat'"
            )
        sizes = len(parameter), parameter.shape[1:].numel()
        counts = [share(ratio, size) for ratio, size in zip(self.ratios, sizes, strict=False)]
        self._kept[name] = [torch.arange(count, dtype=torch.int32, device=parameter.device) for count in counts]
        self._stored[name] = self.stored((*counts, *sizes[len(counts) :]), parameter)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        matrix = grad.view(len(grad), -1)
        self._add_(matrix, *self._kept[name], self._stored[name].read(grad.dtype))
        if self.norms == "compensated":
            self._norms[name] = self._norms_of(matrix, norm_dtype(matrix))
        return grad

    def leaves_stored(self, name: str) -> bool:
        return self.norms == "residual"

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        left, stored = error(), self._stored[name]
        matrix = left.view(len(left), -1)
        counts = [*map(len, self._kept.pop(name))]  # free before others are made
        norms = self._norms.pop(name, None) or self._norms_of(matrix, norm_dtype(matrix))
        drawn_from = [f"{name}/{kept}/{self.rank}" for kept in self.KEPT]
        kept = self._kept[name] = select(norms, counts, drawn_from, self.choice, step)
        del norms
        stored.set_(self._cut(matrix, *kept, stored.room(left.dtype)), self.source(name, left, step))

    def tensors(self) -> dict[str, Tensor]:
        kept = [(name, *pair) for name, own in self._kept.items() for pair in zip(self.KEPT, own, strict=True)]
        return super().tensors() | {f"{self.kind}.{name}.{what}": numbers for name, what, numbers in kept}


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

    kind, KEPT = "rows_columns", ("rows", "columns")
    _add_, _cut, _norms_of = staticmethod(add_crossing_), staticmethod(cut_crossing), staticmethod(l1_norms)

    def __init__(self, *, row_ratio: float = 0.5, column_ratio: float = 0.5, **options: object):
        super().__init__(row_ratio=row_ratio, **options)  # type: ignore[arg-type]
        self.ratios = (*self.ratios, check_share("column_ratio", column_ratio))
