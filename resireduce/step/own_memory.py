"""The memory of gradients and of their averages."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from resireduce.step.shared import overlapping_grads
from resireduce.step.slot import Slot
from resireduce.streamed_away import StreamedAway


def separate(slots: Sequence[Slot], others: Iterable[Tensor]) -> None:
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
