"""Whether a gradient shares its memory with another tensor, so that it must not be changed in place."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

_count = getattr(torch._C, "_storage_Use_Count", None)


def is_shared(grad: Tensor) -> bool:
    """Return whether another tensor uses the memory of `grad`, which a backward pass has just left in `.grad`.

    Autograd leaves views there: with a batch of one, that of `position` in `h + position.unsqueeze(0)` is a view of the
    gradient of `h`, which the layers before are still to be given; two positions that are added share one memory.
    """
    return _count is None or _uses(grad) > _of_one()  # this torch does not count: it may be shared


def _uses(tensor: Tensor) -> int:
    assert _count is not None
    return int(_count(tensor.untyped_storage()._cdata))


@cache
def _of_one() -> int:
    """Return the use count of a gradient that nothing else shares, within a hook, where torch may hold it too: found by
    a small backward pass."""
    seen: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(1, device="cpu", requires_grad=True)
        weight.register_post_accumulate_grad_hook(lambda one: seen.append(_uses(one.grad)))
        (weight * weight).backward()
    return seen[0]


def prepare() -> None:
    """Find out what `is_shared` needs to know, outside of any backward pass."""
    if _count is not None:
        _of_one()


def overlapping_grads(grads: Sequence[Tensor]) -> set[int]:
    """Return the indices of those of `grads`, all strided, whose span of memory overlaps another one's.

    Autograd leaves two views of one memory where it passes the gradient of a sum on to its addends: in `cat([token,
    rest]) + position` with a batch of one, that of `token` is some rows of that of `position`.
    """
    places = sorted((grad.data_ptr(), number) for number, grad in enumerate(grads) if grad.numel() and not grad.is_meta)
    found: set[int] = set()
    last, until = -1, 0  # the one that ends last so far, and where
    for start, number in places:
        if start < until:
            found |= {last, number}
        stop = start + _span(grads[number])
        if stop > until:
            last, until = number, stop
    return found


def _span(grad: Tensor) -> int:
    """Return the bytes from the first element of `grad` in memory to the last."""
    if grad.is_contiguous():
        return grad.nbytes
    steps = sum((size - 1) * stride for size, stride in zip(grad.shape, grad.stride(), strict=True))
    return (steps + 1) * grad.element_size()
