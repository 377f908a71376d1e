"""The elements of a matrix where some rows cross some columns: adding to them, and copying them."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from resireduce.kernels.native import addresses, library, threads, with_members
from resireduce.kernels.norms import l1_norms
from resireduce.kernels.on_gpu import DTYPES, in_triton
from resireduce.kernels.selection import largest_norms
from resireduce.pieces import PIECES


@dataclass(slots=True)
class Crossing:
    """2-D `values` that lie where 1-D `rows` cross 1-D `columns` (int32, ascending) of a matrix of `height` rows."""

    values: Tensor
    rows: Tensor
    columns: Tensor
    height: int

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the values to contiguous `target`, seen as a matrix; return it."""
        add_crossing_(target.view(self.height, -1), self.rows, self.columns, self.values)
        return target


IN_C = "3P4qP"
"""The layout of a crossing in crossing.h, as for the module struct."""


def crossing_in_c(crossing: Crossing, numel: int, room: Tensor) -> tuple[int, ...] | None:
    """Return `crossing` of a matrix of `numel` elements as numbers for compiled code; None unless it is float32 on a
    CPU.

    Compiled code writes into `room` 4 bytes for each row and column of the matrix; None, too, if `room` is smaller.
    """
    values, rows, columns, height = crossing.values, crossing.rows, crossing.columns, crossing.height
    width = numel // height
    if not _suit(rows, columns, values) or room.nbytes < 4 * (height + width):
        return None
    places = values.data_ptr(), rows.data_ptr(), columns.data_ptr()
    return *places, height, width, *values.shape, room.data_ptr()


def add_crossing_(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> None:
    """Add 2-D `values` to where 1-D `rows` cross 1-D `columns` (int32, ascending) of contiguous 2-D `matrix`, in place.

    Plain torch adds whole rows, a sixteenth of them at a time: where operations must be deterministic, a GPU would
    write single elements after sorting their indices, which takes several times the memory of the matrix. Compiled code
    and a kernel on a GPU give the same bits.
    """
    if _compiled("resireduce_add_crossing", matrix, rows, columns, values):
        return
    if _in_triton(matrix, rows, columns, values):
        from resireduce.kernels.gpu import submatrix

        submatrix.add_crossing_(matrix, rows, columns, values)
        return
    places = columns.long()
    for some, part in zip(rows.tensor_split(PIECES), values.tensor_split(PIECES), strict=True):
        whole = matrix.new_zeros(len(some), matrix.shape[1]).index_copy_(1, places, part.to(matrix.dtype))
        matrix.index_add_(0, some, whole)


def cut_crossing(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return a copy of contiguous 2-D `matrix` where 1-D `rows` cross 1-D `columns` (int32, ascending): 2-D.

    Plain torch copies whole rows, a sixteenth of them at a time: single elements would take four times as long.
    """
    values = matrix.new_empty(len(rows), len(columns))
    if _compiled("resireduce_cut_crossing", matrix, rows, columns, values):
        return values
    if _in_triton(matrix, rows, columns, values):
        from resireduce.kernels.gpu import submatrix

        submatrix.cut_crossing_into(values, matrix, rows, columns)
        return values
    for some, part in zip(rows.tensor_split(PIECES), values.tensor_split(PIECES), strict=True):
        torch.index_select(matrix.index_select(0, some), 1, columns, out=part)
    return values


def cut_largest(matrix: Tensor, n_rows: int, n_columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows and columns of contiguous 2-D `matrix` with the largest L1 norms, and a copy of where they cross.

    There are `n_rows` rows and `n_columns` columns (1-D int32, ascending), chosen by `l1_norms` in float32 at least and
    `largest_norms`; the copy is that of `cut_crossing`. Compiled code does all of it in one call.
    """
    height, width = matrix.shape
    compiled = library("submatrix") if suits_c(matrix) and height > 1 and width > 1 else None
    if compiled is None:
        norms_of = l1_norms(matrix, torch.promote_types(matrix.dtype, torch.float32))
        rows, columns = map(largest_norms, norms_of, (n_rows, n_columns))
        del norms_of
        return rows, columns, cut_crossing(matrix, rows, columns)
    rows, columns = (torch.empty(count, dtype=torch.int32, device=matrix.device) for count in (n_rows, n_columns))
    values = matrix.new_empty(n_rows, n_columns)
    enough = n_rows * n_columns >= height + width
    norms = values if enough else matrix.new_empty(height + width)  # nobody needs them when values are cut out
    into = values.data_ptr(), rows.data_ptr(), columns.data_ptr(), height, width, n_rows, n_columns, 0
    _cut_largest(compiled)(matrix.data_ptr(), *into, norms.data_ptr(), threads(height * width))
    return rows, columns, values


@cache
def _cut_largest(compiled: ctypes.CDLL) -> Callable[..., int]:
    return with_members(compiled.resireduce_cut_largest, f"P{IN_C}Pi")


def _compiled(name: str, matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> bool:
    """Call the compiled function `name`; return False if it has done nothing, as for indices that torch refuses."""
    compiled = library("submatrix") if _suit(rows, columns, values, matrix) else None
    if compiled is None:
        return False
    height, width, n_rows, n_columns = map(ctypes.c_int64, (*matrix.shape, *values.shape))
    place, of_rows, of_columns, held = addresses(matrix, rows, columns, values)
    count = threads(len(rows) * matrix.shape[1])
    told = place, height, width, of_rows, n_rows, of_columns, n_columns, held, count
    return bool(getattr(compiled, name)(*told))


def _in_triton(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> bool:
    """Whether Triton's kernels take these tensors: indices of int32, values of one of their dtypes."""
    known = rows.dtype == columns.dtype == torch.int32 and values.dtype in DTYPES
    return known and in_triton(matrix, rows, columns, values)


def _suit(rows: Tensor, columns: Tensor, *numbers: Tensor) -> bool:
    """Whether compiled code takes these tensors: indices of int32, and `numbers` of float32, contiguous, on a CPU."""
    known = rows.dtype == columns.dtype == torch.int32 and rows.is_contiguous() and columns.is_contiguous()
    return known and rows.is_cpu and columns.is_cpu and all(map(suits_c, numbers))


def suits_c(numbers: Tensor) -> bool:
    """Return whether compiled code takes these `numbers`: contiguous float32 on a CPU."""
    return numbers.dtype == torch.float32 and numbers.is_cpu and numbers.is_contiguous()
