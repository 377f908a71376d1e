"""How large tensors are cut into slices of rows, so that neither their gradient nor their average exists as a whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.blocks import row_slices
from resireduce.exactly import exactly
from resireduce.settings import Settings
from resireduce.slices.row_step import footprint
from resireduce.step.slot import Slot

AVERAGES, GRADIENTS = 64, 96
"""Default sizes, as fractions 1 / n of the states that training holds with kept gradients and full residuals. The first
is for a slice of an average, with all temporaries of the optimizer and as much again for decompression; the second is
for a slice of a gradient that a residual absorbs."""
TWICE, SMALLEST_SLICE = 128, 1 << 14
"""A slice of a gradient that is made twice takes 1 / n of the trained bytes, since rounding residuals makes several
tensors of its size. The second number is the smallest slice in bytes."""
GATHERED, GATHERED_IN_PARTS = 16, 80
"""Payloads of all ranks take at most 1 / n of the trained bytes."""


@dataclass(frozen=True)
class SliceBytes:
    """The bytes of a slice; larger tensors are cut, and none with 0."""

    average: int
    """Bytes of a slice of an average that comes back."""
    gradient: int
    """Bytes of a slice of a gradient that a residual absorbs."""
    twice: int
    """Bytes of a slice of a gradient that is made twice."""


def slice_bytes(asked: int | bool | None, slots: Sequence[Slot], optimizer: torch.optim.Optimizer) -> SliceBytes:
    """Return the bytes of slices for all `slots`, as `asked` of `resireduce.distribute`.

    optimizer: the wrapped one, elementwise if slices are asked for.
    """
    if asked is not True:
        return SliceBytes(*3 * [asked or 0])
    trained = sum(slot.nbytes for slot in slots)
    held, made = footprint(optimizer)
    states = (3 + held) * trained
    sizes = (states // (AVERAGES * (made + 1)), states // GRADIENTS, trained // TWICE)
    return SliceBytes(*[max(size, SMALLEST_SLICE) for size in sizes])


def gathered_at_once(settings: Settings, slots: Sequence[Slot]) -> tuple[int, bool]:
    """Return how many bytes of all ranks' payloads may be alive at once, given all `slots`, and whether a larger
    message is gathered in parts: with slices, unless `settings` make messages wait for the last one."""
    parts = bool(settings.slices) and settings.scaler is None and settings.max_grad_norm is None
    return sum(slot.nbytes for slot in slots) // (GATHERED_IN_PARTS if parts else GATHERED), parts


def rows_of(slot: Slot, nbytes: int) -> list[slice]:
    """Return the slices of rows, of about `nbytes` bytes each, that the parameter of `slot` is cut into."""
    return row_slices(slot.parameter.shape, slot.parameter.itemsize, nbytes)


@exactly
def norm_in_rows(parts: Iterable[Tensor]) -> Tensor:
    """Return the L2 norm, 0-D, of the tensor that is cut into `parts`, computed from theirs."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
