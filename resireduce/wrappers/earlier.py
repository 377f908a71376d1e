"""What earlier passes have left in `.grad` of a tensor that this rank does not use in the current one.

DistributedDataParallel hands it over again. If no rank uses the tensor, it stays where it was. Without a hook it would
be averaged with the others' gradients, but here compressed averages have been taken from it already.
"""

from torch import Tensor

from resireduce.errors import UsageError
from resireduce.step.slot import Slot


class Earlier:
    """Puts aside what earlier passes have left, for the time of an exchange."""

    def __init__(self) -> None:
        self._aside: list[tuple[Slot, Tensor, Tensor]] = []  # where the average comes, and what was there

    def put_aside(self, slot: Slot, place: Tensor) -> None:
        """Remember the values in `place`, which will receive an average of the parameter of `slot`."""
        self._aside.append((slot, place, place.clone()))

    def put_back(self) -> None:
        """Put all back, once averages have come.

        Raises UsageError if another rank has used such a tensor: this rank's gradient should have been sent with the
        others'.
        """
        for slot, place, left in self._aside:
            if place.any():
                raise UsageError(
                    f"{slot.name!r} was not used in this pass on this rank, where .grad holds an earlier gradient of "
                    "it, but it was on others: it cannot be averaged with theirs any more. Accumulate within "
                    "model.no_sync(), and call zero_grad() after each step"
                )
            place.copy_(left)
