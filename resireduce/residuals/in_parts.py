"""What residuals do with gradients that come in parts."""

import torch
from torch import Tensor

PARTS = {
    "takes_parts": [("compensate_", "compensate_part_"), *((n, "update_part") for n in ("update", "fold", "weight"))],
    "absorbs": [("compensate_", "absorb_rows")],
}
"""By the method that says whether gradients may come in parts: methods for whole ones, and those for parts."""


class InParts:
    """The part of a residual's interface for gradients that come in parts; by default they come as a whole.

    A subclass that has a method of its own in `PARTS`, but not what does the same to parts, is given whole gradients,
    unless it has a `takes_parts` of its own.
    """

    def __init_subclass__(cls, **options: object):
        super().__init_subclass__(**options)
        depth = {name: i for i, kind in reversed(list(enumerate(cls.__mro__))) for name in vars(kind)}
        for whether, pairs in PARTS.items():
            if any(depth.get(whole, len(depth)) < min(depth[part], depth[whether]) for whole, part in pairs):
                setattr(cls, whether, getattr(InParts, whether))

    def takes_parts(self, name: str) -> bool:
        """Whether gradients of tensor `name` may come in parts, twice, by `compensate_part_` and `update_part`."""
        return False

    def compensate_part_(self, grad: Tensor, name: str, start: int) -> Tensor:
        """Return contiguous `grad`, a part of tensor `name` from element `start` on, with the residual added in place.

        It may be called repeatedly before `update_part`. Raises NotImplementedError in a residual that takes no parts.
        """
        raise NotImplementedError(f"{type(self).__name__} takes gradients as a whole")

    def looks_first(self, name: str) -> bool:
        """Whether the residual must look at the whole error of tensor `name` before it stores a part.

        Then `look_at_part` is called for all parts, in order, and then `end_look`, before the first `update_part`.
        """
        return False

    def look_at_part(self, error: Tensor, name: str, start: int) -> None:
        """Look at contiguous `error`, which will be left of tensor `name` from element `start` on.

        Raises NotImplementedError in a residual that does not look first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not look at what is left before it stores that")

    def end_look(self, name: str, like: Tensor, step: int) -> None:
        """End the look at tensor `name`, which is on the device of `like`, after its last part; `step`: see `update`.

        Raises NotImplementedError in a residual that does not look first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not look at what is left before it stores that")

    def update_part(self, error: Tensor, name: str, start: int, source: torch.Generator | None) -> None:
        """Store contiguous `error`, which is left of tensor `name` from element `start` on.

        Calls for all parts in order, with one `source` for random rounding, equal one call of `update`. Raises
        NotImplementedError in a residual that takes no parts.
        """
        raise NotImplementedError(f"{type(self).__name__} takes gradients as a whole")

    def absorbs(self, name: str) -> bool:
        """Whether `compensate_` adds tensor `name`'s gradient into what is stored, so that it may be called repeatedly
        before `update`, once for each gradient."""
        return False

    def absorb_rows(self, grad: Tensor, name: str, rows: slice) -> None:
        """Add `grad`, the gradient of some `rows` of tensor `name`, into what is stored, where the residual `absorbs`.

        Calls for all rows equal one call of `compensate_`, whose result `absorbed` then returns. Raises
        NotImplementedError in a residual that does not absorb.
        """
        raise NotImplementedError(f"{type(self).__name__} takes gradients as a whole")

    def absorbed(self, name: str) -> Tensor:
        """Return the residual of tensor `name` with the gradients it has absorbed, in the residual's own memory.

        Raises NotImplementedError in a residual that does not absorb.
        """
        raise NotImplementedError(f"{type(self).__name__} takes gradients as a whole")
