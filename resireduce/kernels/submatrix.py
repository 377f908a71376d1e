"""The elements of a matrix where some rows cross some columns: adding to them, and copying them."""

import torch
from torch import Tensor

from resireduce.kernels.native import library, suits, threads
from resireduce.kernels.norms import l1_norms
from resireduce.kernels.on_gpu import DTYPES, in_triton
from resireduce.kernels.selection import largest_norms
from resireduce.pieces import PIECES


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
    `largest_norms`; the copy is that of `cut_crossing`.
    """
    norms_of = l1_norms(matrix, torch.promote_types(matrix.dtype, torch.float32))
    rows, columns = map(largest_norms, norms_of, (n_rows, n_columns))
    del norms_of
    return rows, columns, cut_crossing(matrix, rows, columns)


def _compiled(name: str, matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> bool:
    """Call the compiled function `name`; return False if it has done nothing, as for indices that torch refuses.

    Without storage nothing is to be done: compiled code takes no memory.
    """
    known = rows.dtype == columns.dtype == torch.int32 and rows.is_contiguous() and columns.is_contiguous()
    if matrix.is_meta and matrix.dtype == values.dtype == torch.float32:
        return known and library() is not None
    compiled = library() if known and suits(matrix, values) and rows.is_cpu and columns.is_cpu else None
    if compiled is None:
        return False
    crossed = rows.data_ptr(), len(rows), columns.data_ptr(), len(columns), values.data_ptr()
    count = threads(len(rows) * matrix.shape[1])
    return bool(getattr(compiled, name)(matrix.data_ptr(), *matrix.shape, *crossed, count))


def _in_triton(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> bool:
    """Whether Triton's kernels take these tensors: indices of int32, values of one of their dtypes."""
    known = rows.dtype == columns.dtype == torch.int32 and values.dtype in DTYPES
    return known and in_triton(matrix, rows, columns, values)
