"""The intake of gradients that layers make some rows at a time: they are never there as a whole."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient
from resireduce.finiteness import check_finite
from resireduce.payload import Payload
from resireduce.settings import Settings
from resireduce.slices.row_gradients import RowGradient, SumRows
from resireduce.slices.takers import is_used_again
from resireduce.step.slicing import SliceBytes, rows_of
from resireduce.step.slot import Slot
from resireduce.step.stage import Stage


class RowIntake:
    """Takes gradients row by row, into residuals that absorb them or, made more than once, into payloads.

    Args:
        slots: one for each parameter.
        feedback: compresses gradients.
        settings: what `resireduce.distribute` was given.
        sizes: bytes of the slices.
    """

    def __init__(self, slots: Sequence[Slot], feedback: ErrorFeedback, settings: Settings, sizes: SliceBytes):
        self.slots, self.feedback, self.scaler = slots, feedback, settings.scaler
        self._slice_bytes = sizes
        self.has_begun = False
        """Whether a gradient of this step has been compressed, absorbed or dropped."""
        self.non_finite: NonFiniteGradient | None = None
        """The error of the first gradient that was dropped."""
        self._inverse_scale: float | None = None

    @property
    def large(self) -> list[Slot]:
        """Return the slots whose gradient is taken row by row, where possible. All must have been registered.

        Some are one slice: it is absorbed before anything is compressed; autograd would hold the gradient until then.
        """
        smallest = min(self._slice_bytes.average, self._slice_bytes.gradient)
        return [slot for slot in self.slots if 0 < min(smallest, self._bytes_of(slot)) < slot.nbytes]

    def _bytes_of(self, slot: Slot) -> int:
        """Return the bytes of a slice of the gradient of `slot`."""
        absorbs = self.feedback.keeps_residual(slot.name) and self.feedback.residual.absorbs(slot.name)
        return self._slice_bytes.gradient if absorbs else self._slice_bytes.twice

    def takes_uses(self, slot: Slot) -> bool:
        """Whether the gradient of `slot` can be compressed row by row once its last use is known.

        This must be the only pass of a step, and `.grad` must be empty.
        """
        is_clear = slot.stage is Stage.OPEN and slot.parameter.grad is None and not slot.passes
        return is_clear and self.feedback.takes_parts(slot.name, slot.parameter)

    def takes_rows(self, slot: Slot) -> bool:
        """Whether the residual can absorb the gradient of `slot` row by row now, with nothing in the way in `.grad`."""
        grad_is_clear = slot.parameter.grad is None or (slot.stage is Stage.ABSORBED and slot.is_guarded)
        return grad_is_clear and not slot.is_over and self.feedback.absorbs(slot.name)

    def may_be_taken_back(self, slot: Slot) -> bool:
        """Whether gradients of all uses of `slot` in a pass must be kept, since an overflow in one drops all."""
        return self.scaler is not None and is_used_again(slot.parameter)

    def absorb_rows(self, slot: Slot, gradient: RowGradient) -> None:
        """Have the residual absorb the `gradient` of `slot`, slice by slice of its rows.

        If a slice is not finite, none is absorbed. If there are several slices, each is made twice, unless all are
        certain to be finite.
        """
        slot.by_rows = True
        if slot.stage is Stage.SPOILT:
            return
        slot.check_kind()
        rows = rows_of(slot, self._bytes_of(slot))
        try:
            only = self._check_rows(slot, gradient, rows)
        except NonFiniteGradient as error:
            self._drop(slot, error, Stage.SPOILT)
            slot.parameter.grad = None
            return
        for part in rows:
            self.feedback.absorb_rows(self._unscale_(gradient.rows(part)) if only is None else only, slot.name, part)
        self.has_begun = True
        slot.go(Stage.ABSORBED)
        slot.hide()

    def absorb_uses(self, slot: Slot) -> None:
        """Have the residual absorb the gradients of the uses of `slot` that were kept until the last had come.

        If one of them is not finite, or a whole part of the gradient in `.grad`, nothing of this pass is absorbed.
        """
        uses, slot.uses = slot.uses, []
        if slot.stage is Stage.SPOILT:
            return
        slot.check_kind()
        rows, whole = rows_of(slot, self._bytes_of(slot)), slot.parameter.grad
        try:
            for use in uses:
                self._check_rows(slot, use, rows)
            if whole is not None and whole.layout == torch.strided:
                check_finite(whole if self._inverse() <= 1 else whole * self._inverse(), slot.name)
        except NonFiniteGradient as error:
            self._drop(slot, error, Stage.SPOILT)
            slot.parameter.grad = None
            return
        for use in uses:
            for part in rows:
                self.feedback.absorb_rows(self._unscale_(use.rows(part)), slot.name, part)
        self.has_begun = True
        slot.go(Stage.ABSORBED)

    def _check_rows(self, slot: Slot, gradient: RowGradient, rows: Sequence[slice]) -> Tensor | None:
        """Raise NonFiniteGradient if a slice of `gradient` is not finite; return the slice, if it is the only one."""
        if len(rows) > 1 and gradient.stays_below(
            torch.finfo(slot.parameter.dtype).max / (4 * max(self._inverse(), 1.0))
        ):
            return None
        for part in rows:
            check_finite(made := self._unscale_(gradient.rows(part)), slot.name)
            if len(rows) == 1:
                return made
            del made  # before the next is made
        return None

    def _payload_of_parts(self, slot: Slot, step: int) -> Payload:
        gradient = SumRows(slot.uses, slot.parameter.grad)
        slot.uses, slot.parameter.grad = [], None
        return self.feedback.compress_parts(
            lambda part: self._unscale_(gradient.rows(part)),
            rows_of(slot, self._bytes_of(slot)),
            slot.parameter,
            slot.name,
            step,
        )

    def _unscale_(self, grad: Tensor) -> Tensor:
        """Divide by the scale of the loss, in place."""
        return grad if self.scaler is None else grad.mul_(self._inverse())

    def _inverse(self) -> float:
        """Return the factor that undoes the scale of the loss, which is read once per step."""
        if self._inverse_scale is None:
            self._inverse_scale = 1.0 if self.scaler is None else self.scaler.inverse_scale()
        return self._inverse_scale

    def _drop(self, slot: Slot, error: NonFiniteGradient, stage: Stage) -> None:
        """Leave a gradient out; the step goes on without it, so that all ranks reach its end."""
        self.non_finite, self.has_begun = self.non_finite or error, True
        slot.go(stage)
