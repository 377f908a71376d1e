"""The k largest magnitudes of a tensor, or of a sum, without asking the device for a value.

A tensor of middling size is processed in one launch (`once.py`), where that works; otherwise in several
(`launches.py`). Of a large one only those elements are processed that a sample has shown to be near (`near.py`).
"""

import torch
from torch import Tensor

from resireduce.kernels.gpu import launches, once
from resireduce.kernels.gpu.language import on_device
from resireduce.kernels.gpu.near import Near, find_near, sample_of
from resireduce.kernels.gpu.take_out import take_out_

Into = tuple[Tensor, Tensor]
"""Tensors into which elements are written, of their dtype, and their indices: int32 or int64."""


def select(flat: Tensor, k: int, added: Tensor | None = None, at_once: bool = True) -> Tensor:
    """Return the indices (int64, ascending) of the `k` largest magnitudes of 1-D `flat`, as `largest_magnitudes` does.

    flat: contiguous float32, float16 or bfloat16 without NaN, of 2^30 elements at most, and more than `k`. added: like
    it; it is added to `flat` first, in place, with the bits of `flat.add_(added)`. at_once: whether the form in one
    launch may be used. Extra memory: 16 bytes for each 4,096 elements, some thousand, and of a large tensor 8 (6 of
    half precision) for each element that may be among the largest.
    """
    return _chosen(flat, k, added, at_once, None)


def take_largest_(flat: Tensor, k: int, into: Into, added: Tensor | None, at_once: bool = True) -> None:
    """Write the elements that `select` chooses, and their indices, `into` tensors of `k`; leave zeros in their places.

    flat, k, added, at_once: as there.
    """
    indices = _chosen(flat, k, added, at_once, into)
    if indices is not into[1]:
        into[0].copy_(take_out_(flat, indices))
        into[1].copy_(indices)


def _chosen(flat: Tensor, k: int, added: Tensor | None, at_once: bool, into: Into | None) -> Tensor:
    """Return the indices of the selected elements; if they are those of `into`, the elements are written too."""
    n = flat.numel()
    if (sample := sample_of(n, k)) is not None:
        step, place, room = sample
        near = _near(flat, added, at_once, step, place, room)
        once_more = at_once and once.used(flat, room)
        return once.selected(flat, k, near, None, into) if once_more else launches.selected(flat, k, near)
    if at_once and once.used(flat, n):
        return once.selected(flat, k, None, added, into)
    return launches.selected(flat if added is None else flat.add_(added), k)


def _near(flat: Tensor, added: Tensor | None, at_once: bool, step: int, place: int, room: int) -> Near:
    """Return those that reach the `place`-th largest of each `step`-th element of `flat`, with `added`, if any."""
    sampled = flat[::step].contiguous() if added is None else torch.add(flat[::step], added[::step])
    form = once if at_once and once.used(flat, sampled.numel()) else launches
    border = form.find_border(sampled, place)
    with on_device(flat):
        return find_near(flat, border, room, added)
