"""How gradients lie in the buckets of DistributedDataParallel: as their parameters did when it was made."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from resireduce.errors import UsageError
from resireduce.step.slot import Slot

LAID_OUT = (
    "{name!r} was laid out anew in memory after DistributedDataParallel(...), which then mixes up the elements of its "
    "gradient, with or without compression: give the model its layout, as by to(memory_format=torch.channels_last), "
    "before it is wrapped"
)


class Layouts:
    """Looks whether gradients lie in their buckets as their parameters do in memory.

    A bucket does not tell how it is laid out, so that values are compared, in the first pass that has a gradient.
    """

    def __init__(self) -> None:
        self._strides: dict[Slot, tuple[int, ...]] = {}

    def check(self, views: Mapping[Slot, Tensor]) -> None:
        """Raise UsageError if one of `views`, in which a bucket was cut by the strides of parameters, is no gradient.

        A parameter whose strides have changed since an earlier pass is refused, whatever its gradient is.
        """
        for slot, view in views.items():
            strides, grad = slot.parameter.stride(), slot.parameter.grad
            known = self._strides.get(slot)
            if known == strides or grad is None or not slot.is_taken:
                continue
            if known is not None or _in_another_order(view, grad):
                raise UsageError(LAID_OUT.format(name=slot.name))
            self._strides[slot] = strides


def views_in(buffer: Tensor, slots: Sequence[Slot]) -> dict[Slot, Tensor]:
    """Return the gradient of each of `slots` in the flat `buffer` of a bucket.

    It is laid out as by the wrapper: like its parameter, if that has no gaps.
    """
    views, start = {}, 0
    for slot in slots:
        parameter = slot.parameter
        flat = buffer[start : start + parameter.numel()]
        # Strides survive empty_like only if the tensor has neither gaps nor overlaps.
        dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
        views[slot] = flat.as_strided(parameter.shape, parameter.stride()) if dense else flat.view(parameter.shape)
        start += parameter.numel()
    return views


def _in_another_order(view: Tensor, grad: Tensor) -> bool:
    """Whether `view` holds the elements of `grad` at other places; other elements are no matter of layout."""
    return _differ(view, grad) and not _differ(view.flatten().sort()[0], grad.flatten().sort()[0])


def _differ(some: Tensor, others: Tensor) -> bool:
    """Whether an element differs that is not NaN."""
    return not bool(((some == others) | others.isnan()).all())
