"""How large tensors are cut into slices of their rows, so that neither gradient nor average is there whole."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from resireduce.blocks import row_slices
from resireduce.step.slot import Slot

SLICES, SMALLEST_SLICE = 128, 1 << 14
"""By default a slice is one of so many parts of the bytes that are trained, and has so many bytes at least."""


def slice_bytes(asked: int | bool | None, slots: Sequence[Slot]) -> int:
    """Return the bytes of a slice that `resireduce.distribute` was `asked` for, given all `slots`; 0: none is cut."""
    if asked is True:
        return max(sum(slot.nbytes for slot in slots) // SLICES, SMALLEST_SLICE)
    return asked or 0


def rows_of(slot: Slot, nbytes: int) -> list[slice]:
    """Return the slices of rows, of about `nbytes` bytes each, that the parameter of `slot` is cut into."""
    return row_slices(slot.parameter.shape, slot.parameter.itemsize, nbytes)


def norm_in_rows(parts: Iterable[Tensor]) -> Tensor:
    """Return the L2 norm, 0-D, of the tensor that is cut into `parts`, formed of theirs."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
