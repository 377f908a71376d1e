"""What slices of large tensors cost in a step: how many there are, and which gradients are made more than once."""

from dataclasses import dataclass

from resireduce.optimizer import DistributedOptimizer
from resireduce.slices.row_layers import THRICE
from resireduce.step.slicing import rows_of, slice_bytes
from resireduce.step.slot import Slot


@dataclass(frozen=True)
class SlicePrice:
    """What slices cost in a step beside the same step without them."""

    slices: int
    """How many slices of gradients are made, and of averages used: each is a few calls of small operations."""
    made_again: float
    """Elements of gradients that are made once more, as a share of all that is trained: each takes as long as one of
    the three products of a layer, forward, to its inputs and to its weight."""


def price_of_slices(optimizer: DistributedOptimizer, asked: int | bool | None) -> SlicePrice:
    """Return what the slices cost that `optimizer`, made by `resireduce.distribute`, was `asked` for.

    asked: as `slices` there; None and False cost nothing.
    """
    if not asked:
        return SlicePrice(0, 0.0)
    sizes = slice_bytes(asked, optimizer.slots, optimizer.wrapped)
    times = {name: 3 if reason.startswith(THRICE) else 2 for name, reason in optimizer.twice_gradients.items()}
    made, again = 0, 0
    for slot in optimizer.slots:
        if slot.nbytes > sizes.average:
            made += len(rows_of(slot, sizes.average))
        if slot.name in times:
            made += times[slot.name] * len(rows_of(slot, sizes.twice))
            again += (times[slot.name] - 1) * slot.parameter.numel()
        elif slot.nbytes > min(sizes.average, sizes.gradient) and _absorbed(optimizer, slot):
            made += len(rows_of(slot, sizes.gradient))
    return SlicePrice(made, again / sum(slot.parameter.numel() for slot in optimizer.slots))


def _absorbed(optimizer: DistributedOptimizer, slot: Slot) -> bool:
    """Whether the gradient of `slot` is made once, slice by slice."""
    feedback = optimizer.feedback
    whole = slot.name in optimizer.whole_gradients or not feedback.keeps_residual(slot.name)
    return not whole and feedback.residual.absorbs(slot.name)
