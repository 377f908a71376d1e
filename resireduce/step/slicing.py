"""How large tensors are cut into slices of their rows, so that neither gradient nor average is there whole."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from resireduce.blocks import row_slices
from resireduce.settings import Settings
from resireduce.step.slot import Slot

SLICES, SMALLEST_SLICE = 128, 1 << 14
"""By default a slice is one of so many parts of the bytes that are trained, and has so many bytes at least."""
GATHERED, GATHERED_IN_PARTS = 16, 40
"""Payloads of all ranks take at most such a part of the bytes that are trained; the second is a 100th of the states of
an optimizer without any, or less."""


def slice_bytes(asked: int | bool | None, slots: Sequence[Slot]) -> int:
    """Return the bytes of a slice that `resireduce.distribute` was `asked` for, given all `slots`; 0: none is cut."""
    if asked is True:
        return max(sum(slot.nbytes for slot in slots) // SLICES, SMALLEST_SLICE)
    return asked or 0


def gathered_at_once(settings: Settings, slots: Sequence[Slot]) -> tuple[int, bool]:
    """Return how many bytes of all ranks' payloads are alive at once, given all `slots`, and whether a message is
    gathered in parts that takes more: with slices, unless `settings` say that messages wait for the last one."""
    parts = bool(settings.slices) and settings.scaler is None and settings.max_grad_norm is None
    return sum(slot.nbytes for slot in slots) // (GATHERED_IN_PARTS if parts else GATHERED), parts


def rows_of(slot: Slot, nbytes: int) -> list[slice]:
    """Return the slices of rows, of about `nbytes` bytes each, that the parameter of `slot` is cut into."""
    return row_slices(slot.parameter.shape, slot.parameter.itemsize, nbytes)


def norm_in_rows(parts: Iterable[Tensor]) -> Tensor:
    """Return the L2 norm, 0-D, of the tensor that is cut into `parts`, formed of theirs."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
