"""ResiReduce-d: some rows of a specific layer's residual (paper, section 4.3, Fig. 7b)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.errors import choose
from resireduce.residuals.base import Residual, named, norm_dtype
from resireduce.residuals.choosing import CHOICES, NORMS, Ratio, matrix_shape, select
from resireduce.residuals.stored import Stored
from resireduce.share import share


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
