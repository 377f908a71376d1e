"""The elements of a matrix where some rows cross some columns: what is added to them, and a copy of them."""

import ctypes

import torch
from torch import Tensor

from resireduce.blocks import PIECES
from resireduce.kernels.native import addresses, library, threads


def add_crossing_(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor, pieces: int = PIECES) -> None:
    """Add 2-D `values` to where 1-D `rows` cross 1-D `columns` (int32, ascending) of contiguous 2-D `matrix`, in place.

    Whole rows, in `pieces`: where operations must be deterministic, a GPU would write the elements one by one after
    sorting their indices, which takes several times the memory of the matrix. Compiled code gives the same bits.
    """
    if _compiled("resireduce_add_crossing", matrix, rows, columns, values):
        return
    places = columns.long()
    for some, part in zip(rows.tensor_split(pieces), values.tensor_split(pieces), strict=True):
        whole = matrix.new_zeros(len(some), matrix.shape[1]).index_copy_(1, places, part.to(matrix.dtype))
        matrix.index_add_(0, some, whole)


def cut_crossing(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return a copy of contiguous 2-D `matrix` where 1-D `rows` cross 1-D `columns` (int32, ascending): 2-D.

    Whole rows, a sixteenth of them at a time: elements one by one would take four times as long.
    """
    values = matrix.new_empty(len(rows), len(columns))
    if _compiled("resireduce_cut_crossing", matrix, rows, columns, values):
        return values
    for some, part in zip(rows.tensor_split(PIECES), values.tensor_split(PIECES), strict=True):
        torch.index_select(matrix.index_select(0, some), 1, columns, out=part)
    return values


def _compiled(name: str, matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> bool:
    """Have compiled code do what it can; False if nothing was done, as with numbers that torch refuses."""
    fits = matrix.dtype == values.dtype == torch.float32 and rows.dtype == columns.dtype == torch.int32
    compiled = library("submatrix") if fits and matrix.device.type == "cpu" else None
    if compiled is None or not all(tensor.is_contiguous() for tensor in (matrix, rows, columns, values)):
        return False
    height, width, n_rows, n_columns = map(ctypes.c_int64, (*matrix.shape, *values.shape))
    place, of_rows, of_columns, held = addresses(matrix, rows, columns, values)
    count = threads(len(rows) * matrix.shape[1])
    told = place, height, width, of_rows, n_rows, of_columns, n_columns, held, count
    return bool(getattr(compiled, name)(*told))
