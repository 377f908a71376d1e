"""How large tensors are cut into slices of their rows, so that neither gradient nor average is there whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.blocks import row_slices
from resireduce.settings import Settings
from resireduce.step.slot import Slot

AVERAGES, GRADIENTS, TWICE, SMALLEST_SLICE = 72, 40, 128, 1 << 14
"""By default a slice of an average, of a gradient that a residual absorbs, and of one that is made twice, is one of so
many parts of the bytes that are trained, and has so many bytes at least. The more tensors of its size are made beside
it, by the optimizer or by what rounds residuals, the smaller it is: so the fullest moment is about the same for all."""
GATHERED, GATHERED_IN_PARTS = 16, 40
"""Payloads of all ranks take at most such a part of the bytes that are trained; the second is a 100th of the states of
an optimizer without any, or less."""


@dataclass(frozen=True)
class SliceBytes:
    """Bytes of a slice; larger tensors are cut. 0: none is."""

    average: int
    """Of what comes back."""
    gradient: int
    """Of a gradient that a residual absorbs."""
    twice: int
    """Of a gradient that is made twice."""


def slice_bytes(asked: int | bool | None, slots: Sequence[Slot]) -> SliceBytes:
    """Return the bytes of slices of `slots`, all there are, as `resireduce.distribute` was `asked` for them."""
    if asked is not True:
        return SliceBytes(*3 * [asked or 0])
    trained = sum(slot.nbytes for slot in slots)
    return SliceBytes(*[max(trained // share, SMALLEST_SLICE) for share in (AVERAGES, GRADIENTS, TWICE)])


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
