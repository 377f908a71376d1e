"""Error feedback for one gradient: compensate, compress, update the residual."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from resireduce.compressors.base import Rounds, State
from resireduce.errors import NonFiniteGradient
from resireduce.feedback_state import FeedbackState
from resireduce.finiteness import refusal
from resireduce.payload import Payload
from resireduce.sending.message import Round, continue_rounds
from resireduce.slices.gradient_parts import payload_of_parts
from resireduce.timeline import timed


class ErrorFeedback(FeedbackState):
    """A messenger that keeps what is not sent in residuals (paper, section 2.2, steps 2-5).

    It is made as a `FeedbackState` is.
    """

    @timed("compress", exact=True)
    def compress(self, grad: Tensor, name: str, step: int) -> Payload | Round:
        """Return this rank's payload for contiguous `grad`, whose memory may be overwritten (or be the payload's).

        If ranks make payloads in rounds, return the first round: `grad` is needed until the last, which updates the
        residual. Raises NonFiniteGradient, before the residual is touched, if `grad` holds NaN or infinity; where
        `finiteness` does not answer at once, it replaces such a gradient by zeros.
        """
        if self._adds(name):
            return self._take_from_sum(grad, name, step)
        if name in self.checked_packed and self.momentum is None and not self.finiteness.checks_at_once(grad):
            self.finiteness.check_later(name)
        else:
            self.finiteness.check_(grad, name)
        if self.momentum is not None:
            grad = self.momentum.accumulate_(grad, name)
        compressor = self.compressor_of(name)
        if compressor is self._dense_compressor:
            return compressor.compress(grad, name, step)
        if compressor.lossless:
            return continue_rounds(name, self._rounds(grad, name, step))
        return continue_rounds(name, self._feed_back(self.residual.compensate_(grad, name), name, step))

    def _look_at_packed_(self, packed: Tensor, payloads: Sequence[Payload], names: Sequence[str]) -> None:
        if names[0] in self.checked_packed and self.momentum is None and not self.finiteness.checks_at_once(packed):
            self.finiteness.check_together_(packed, [payload.buffer for payload in payloads], names)

    def _take_from_sum(self, grad: Tensor, name: str, step: int) -> Payload:
        """Do as `compress`, where the compressor adds the residual, and checks for NaN, while it reads the elements.

        It can check only where the sum is not formed in the residual's memory, which would hold the NaN by then.
        """
        residual = self.residual.part_of(name) if hasattr(type(self.residual), "part_of") else self.residual
        checks = self.finiteness.checks_at_once(grad) and residual.leaves_stored(name)
        if not checks:
            self.finiteness.check_(grad, name)
        dense, added = residual.addends(grad, name) or (residual.compensate_(grad, name), None)
        try:
            payload = self.compressor_of(name).take_from_sum_(dense, added, checks)
        except FloatingPointError:
            raise NonFiniteGradient(refusal(name)) from None
        del added  # an update may free it before it stores anew
        residual.update(name, lambda: dense, step)
        return payload

    def _adds(self, name: str) -> bool:
        """Whether the compressor may add the residual itself.

        Their classes must have `adds` and `addends`. An object that stands in for one of them, and passes on what it
        lacks, has not: then its own `compensate_` or `compress` is called.
        """
        compressor = self.compressor_of(name)
        if compressor.lossless or self.momentum is not None:
            return False
        known = hasattr(type(compressor), "adds") and hasattr(type(self.residual), "addends")
        return known and compressor.adds

    @timed("compress", exact=True)
    def compress_absorbed(self, name: str, step: int) -> Payload | Round:
        """Do as `compress` for tensor `name`, whose whole gradient the residual has absorbed."""
        return continue_rounds(name, self._feed_back(self.residual.absorbed(name), name, step))

    def _feed_back(self, compensated: Tensor, name: str, step: int) -> Rounds:
        """Make the payload of a gradient with its residual added, and update the residual."""
        compressor = self.compressor_of(name)
        payload = yield from self._rounds(compensated, name, step, self.states.working(name))
        if self.momentum is not None:
            self.momentum.mask_(name, compressor.sent_indices(payload))
        return self._keep_error(compensated, payload, name, step)

    def _keep_error(self, compensated: Tensor, payload: Payload, name: str, step: int) -> Payload:
        """Store in the residual what `payload` lacks of the compensated gradient; return the payload."""
        error_ = self.compressor_of(name).error_
        self.residual.update(name, lambda: error_(compensated, payload), step)
        return payload

    @timed("compress", exact=True)
    def end_round(self, under_way: Round) -> Payload | Round:
        """Wait for the result of a round; return the payload that follows, or the next round, neither launched yet."""
        assert under_way.handle is not None
        return continue_rounds(under_way.name, under_way.rest, under_way.number, self._wait(under_way.handle))

    def absorbs(self, name: str) -> bool:
        """Whether the gradients of a step's earlier passes can be added into the residual, and need not be held."""
        return self.momentum is None and self.leaves_residual(name) and self.residual.absorbs(name)

    @timed("compress", exact=True)
    def absorb(self, grad: Tensor, name: str) -> None:
        """Add the gradient of an earlier pass into the residual. Raises NonFiniteGradient as `compress` does."""
        self.finiteness.check_(grad, name)
        self.residual.compensate_(grad, name)

    @timed("compress", exact=True)
    def absorb_rows(self, grad: Tensor, name: str, rows: slice) -> None:
        """Add the gradient of some `rows` of tensor `name`, known to be finite, into the residual that `absorbs` it."""
        self.residual.absorb_rows(grad, name, rows)

    def takes_parts(self, name: str, like: Tensor) -> bool:
        """Whether `compress_parts` can replace `compress` in this step for tensor `name`, which is `like` that.

        Only shape, dtype and device of `like` count. False where the residual absorbs gradients, which is cheaper.
        """
        known = self.momentum is None and self.keeps_residual(name) and self.residual.takes_parts(name)
        return known and self.compressor_of(name).selects_from_parts(like)

    @timed("compress", exact=True)
    def compress_parts(
        self, gradient: Callable[[slice], Tensor], rows: Sequence[slice], like: Tensor, name: str, step: int
    ) -> Payload:
        """Do as `compress` for a gradient that is made in parts, twice or three times: see `payload_of_parts`.

        Raises NonFiniteGradient before the residual is touched.
        """
        return payload_of_parts(self.compressor_of(name), self.residual, gradient, rows, like, name, step)

    @timed("compress", exact=True)
    def keep(self, dense: Tensor, name: str, step: int) -> None:
        """Add `dense` to the residual of tensor `name`; `step` seeds random rounding."""
        self.residual.restore(name, self.residual.compensate_(dense, name), step)

    def put_back(self, payload: Payload, name: str, step: int) -> None:
        """Add what was sent back to the residual; `step` seeds random rounding."""
        self.keep(self.compressor_of(name).decompress(payload), name, step)

    def _rounds(self, grad: Tensor, name: str, step: int, state: State | None = None) -> Rounds:
        compressor = self.compressor_of(name)
        drawn_from = name if compressor.same_draw else f"{name}/{self.place['rank']}"
        return compressor.agree(grad, drawn_from, step, state or {})

    @timed("compress", exact=True)
    def absent(self, parameter: Tensor, name: str, step: int) -> Payload | Round:
        """Return what a rank sends for a tensor without a gradient in this step: zeros. The residual stays as it is.

        So does the compressor's state, except for what it learns of the other ranks' gradients.
        """
        zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        return continue_rounds(name, self._rounds(zeros, name, step, self.states.copied(name)))
