"""Gradients as tensors: memory that several share, the layout of their parameter, and clipping."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resireduce.refusals import StreamedAway
from resireduce.timeline import exactly

if TYPE_CHECKING:
    from resireduce.core.slot import Slot


# --- Whether a gradient shares its memory with another tensor, so that it must not be changed in place ---

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


# --- The memory of gradients and of their averages ---


def separate(slots: "Sequence[Slot]", others: Iterable[Tensor]) -> None:
    """Give gradients of `slots` memory of their own where autograd has left several in one: each is to hold an average.

    Their graphs, which create_graph=True has made, are dropped: averages have none.

    others: parameters that somebody else updates, whose gradients must stay as they are.
    """
    found = [(slot, slot.parameter.grad) for slot in slots] + [(None, other.grad) for other in others]
    held = [(slot, grad) for slot, grad in found if grad is not None and not isinstance(grad, StreamedAway)]
    for slot, grad in held:
        if slot is not None and grad.requires_grad:
            slot.parameter.grad = grad.detach()
    strided = [(slot, grad) for slot, grad in held if grad.layout == torch.strided]
    for number in overlapping_grads([grad for _, grad in strided]):
        slot, grad = strided[number]
        if slot is not None:
            slot.copy_grad(grad)


def laid_out(average: Tensor, like: Tensor) -> Tensor:
    """Return `average` with the strides of the parameter `like`, which fused optimizers take for granted."""
    if average.stride() == like.stride():
        return average
    return torch.empty_like(like, dtype=average.dtype).detach_().copy_(average)


# --- Clipping by the global norm, as torch's clip_grad_norm_ does it, from the norms of the single tensors ---


@exactly
def clip_factor(norms: Sequence[Tensor], largest: float) -> tuple[Tensor, Tensor]:
    """Return the global norm of tensors with these L2 `norms`, and the factor that limits it to `largest`.

    There must be at least one norm; the results are 0-D, on the device of the first.
    """
    norm = torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms]))
    return norm, (largest / (norm + 1e-6)).clamp(max=1.0)


# --- The node of autograd's graphs that adds gradients to a parameter's `.grad` ---


def accumulation_node(parameter: Tensor) -> Any:
    """Return the node by which all graphs of `parameter` add to `.grad`; `torch.autograd.grad` does not run it.

    torch frees it, with its hooks, when nothing holds it, and makes another one when dtype or device change.
    """
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
