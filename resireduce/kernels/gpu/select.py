"""The k largest magnitudes of a tensor, or of a sum, without asking the device for a value.

A tensor of middling size is gone through in one launch (`once.py`), where that works; else in several (`launches.py`).
Of a large one only the elements are gone through that a sample says are near (`near.py`).
"""

import torch
from torch import Tensor

from resireduce.kernels.gpu import launches, once
from resireduce.kernels.gpu.language import on_device
from resireduce.kernels.gpu.near import find_near, sample_of


def select(flat: Tensor, k: int, added: Tensor | None = None, at_once: bool = True) -> Tensor:
    """Return the indices (int64, ascending) of the `k` largest magnitudes of 1-D `flat`, as `largest_magnitudes` does.

    flat: contiguous float32, float16 or bfloat16 without NaN, of 2^30 elements at most, and more than `k`. added: like
    it; it is added to `flat` first, in place, with the bits of `flat.add_(added)`. at_once: whether the form in one
    launch may be used. Held beside these and the result: 16 bytes for each 4,096 elements, some thousand, and of a
    large tensor 8 (6 of half precision) for each element that may be among the largest.
    """
    n = flat.numel()
    if (sample := sample_of(n, k)) is not None:
        return _of_near(flat, k, added, at_once, *sample)
    if at_once and once.used(flat, n):
        return once.selected(flat, k, None, added)
    return launches.selected(flat if added is None else flat.add_(added), k)


def _of_near(flat: Tensor, k: int, added: Tensor | None, at_once: bool, step: int, place: int, room: int) -> Tensor:
    """Return what `select` does; a sample of each `step`-th element says by its `place`-th largest which are near."""
    sampled = flat[::step].contiguous() if added is None else torch.add(flat[::step], added[::step])
    form = once if at_once and once.used(flat, sampled.numel()) else launches
    border = form.find_border(sampled, place)
    with on_device(flat):
        near = find_near(flat, border, room, added)
    form = once if at_once and once.used(flat, room) else launches
    return form.selected(flat, k, near)
