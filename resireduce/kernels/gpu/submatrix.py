"""The elements of a matrix where some rows cross some columns: added to, or copied, in one pass."""

from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, jit, on_device, tl

TILE = 1024
"""Columns of one program, a power of two."""


@jit
def _add(matrix, down, across, values, width, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    place = tl.load(down + row).to(tl.int64) * width + tl.load(across + at, mask=at < n, other=0)
    value = tl.load(values + row.to(tl.int64) * n + at, mask=at < n, other=0.0)
    value = value.to(matrix.dtype.element_ty).to(tl.float32)  # rounded before it is added, as in the plain form
    held = tl.load(matrix + place, mask=at < n, other=0.0).to(tl.float32)
    tl.store(matrix + place, (held + value).to(matrix.dtype.element_ty), mask=at < n)


@jit
def _cut(matrix, down, across, values, width, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    place = tl.load(down + row).to(tl.int64) * width + tl.load(across + at, mask=at < n, other=0)
    tl.store(values + row.to(tl.int64) * n + at, tl.load(matrix + place, mask=at < n, other=0.0), mask=at < n)


def add_crossing_(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor, tile: int = TILE) -> None:
    """Add 2-D `values` to where 1-D `rows` cross 1-D `columns` of 2-D `matrix`, in place; no index occurs twice.

    All are contiguous; matrix and values are float32, float16 or bfloat16, the others int32. tile: columns of one
    program, a power of two.
    """
    _go_through(_add, matrix, rows, columns, values, tile)


def cut_crossing_into(values: Tensor, matrix: Tensor, rows: Tensor, columns: Tensor, tile: int = TILE) -> None:
    """Copy into 2-D `values` what lies where 1-D `rows` cross 1-D `columns` of 2-D `matrix`, which has their dtype.

    All are contiguous; rows and columns are int32. tile: columns of one program, a power of two.
    """
    _go_through(_cut, matrix, rows, columns, values, tile)


def _go_through(kernel, matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor, tile: int) -> None:  # type: ignore[no-untyped-def]
    if values.numel():
        height, n = values.shape
        with on_device(matrix):
            kernel[(height, -(-n // tile))](matrix, rows, columns, values, matrix.shape[1], n, tile, **EXACT)
