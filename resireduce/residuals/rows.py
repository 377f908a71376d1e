"""ResiReduce-d: some rows of a specific layer's residual (paper, section 4.3, Fig. 7b)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.errors import check_share
from resireduce.residuals.base import Residual, largest, named, norm_dtype
from resireduce.residuals.stored import Stored
from resireduce.share import share


@dataclass
class _Rows:
    values: Stored  # (rows kept, columns)
    rows: Tensor  # int32, ascending


class RowsResidual(Residual):
    """Stores the rows of the residual with the largest L1 norms.

    A tensor is seen as a matrix (first dimension, all others). max(1, floor(row_ratio x rows)) rows are kept.
    """

    def __init__(self, *, row_ratio: float = 0.25, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.row_ratio = check_share("row_ratio", row_ratio)
        self._stored: dict[str, _Rows] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """Zeros for the first rows: the bytes are the same from the first step on."""
        n_rows, n_columns = parameter.flatten(1).shape
        rows = torch.arange(share(self.row_ratio, n_rows), dtype=torch.int32, device=parameter.device)
        self._stored[name] = _Rows(self.stored((len(rows), n_columns), parameter), rows)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Add the rows to their places in the gradient, in place."""
        stored = self._stored[name]
        grad.view(len(grad), -1).index_add_(0, stored.rows, stored.values.read(grad.dtype))
        return grad

    def update(self, name: str, error: Callable[[], Tensor]) -> None:
        """Choose rows anew, and keep what is there."""
        left = error()
        stored, matrix = self._stored[name], left.view(len(left), -1)
        stored.values.release()
        norms = torch.linalg.vector_norm(matrix, 1, dim=1, dtype=norm_dtype(left))
        stored.rows = largest(norms, len(stored.rows))
        stored.values.set_(matrix.index_select(0, stored.rows), self.source(name, left))

    def tensors(self) -> dict[str, Tensor]:
        """The rows and their numbers, for each registered tensor."""
        values = named("rows", {name: stored.values for name, stored in self._stored.items()})
        return values | {f"rows.{name}.rows": stored.rows for name, stored in self._stored.items()}
