"""DistributedOptimizer: gradients go out as the backward pass produces them, and come back in `step`.

Kept gradients (the paper's): `.grad` lives on, and takes the averaged gradient. Streamed gradients: as soon as autograd
has finished a gradient it is absorbed by the residual, compressed, and freed; `step` brings the averages back a bounded
number of bytes at a time, and lets the wrapped optimizer update just those parameters.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.intake import Intake
from resireduce.launch import LaunchQueue
from resireduce.slot import Slot
from resireduce.update import Updater
from resireduce.wrapper import OptimizerWrapper

DISTRIBUTED = "_resireduce_distributed"
"""Attribute of the parameters that have a DistributedOptimizer: a second one would compress them twice."""


class DistributedOptimizer(OptimizerWrapper):
    """Made by `resireduce.distribute`, and used where the wrapped one was: `zero_grad()`, `backward()`, `step()`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        feedback: ErrorFeedback,
        *,
        streamed: bool,
        backward_passes_per_step: int = 1,
        max_grad_norm: float | None = None,
        max_local_grad_norm: float | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
    ):
        super().__init__(optimizer)
        self.feedback, self.streamed, self.grad_scaler = feedback, streamed, grad_scaler
        self.backward_passes_per_step = backward_passes_per_step
        self.overflowed = False
        """With a GradScaler: whether the last step was skipped, because a gradient of some rank overflowed."""
        self._syncing, self._failed = True, False
        self.slots = [Slot.of(index, name, p, feedback) for index, (name, p) in enumerate(parameters.items())]
        limit = sum(slot.nbytes for slot in self.slots) // 16
        self.queue = LaunchQueue(self.slots, feedback, limit)
        self._intake = Intake(self.slots, feedback, streamed=streamed, max_norm=max_local_grad_norm, scaler=grad_scaler)
        self._updater = Updater(
            optimizer,
            self.slots,
            self.queue,
            streamed=streamed,
            waits=streamed and grad_scaler is not None,
            max_grad_norm=max_grad_norm,
        )
        self._restart()
        for slot in self.slots:
            feedback.register(slot.name, slot.parameter)
        for slot in self.slots:  # only now that nothing is refused any more
            slot.parameter.grad = None  # one from before is this rank's own, and would be taken for an average
            setattr(slot.parameter, DISTRIBUTED, True)
            slot.parameter.register_post_accumulate_grad_hook(lambda _, slot=slot: self._on_gradient(slot))

    def _restart(self) -> None:
        self._in_backward = False
        self._intake.restart()
        self._updater.restart()

    @property
    def steps(self) -> int:
        """How many steps have been taken, without those that were skipped."""
        return self.feedback.residual.steps

    @property
    def grad_norm(self) -> Tensor | None:
        """With `max_grad_norm`: the global norm of the last step's averaged gradients before clipping, 0-D."""
        return self._updater.grad_norm

    def residual_state_dict(self) -> dict[str, Tensor]:
        """This rank's residuals, and its velocities if momentum is corrected. Save one file a rank: they differ."""
        self.refuse_within_step("residual_state_dict()")
        return self.feedback.state_dict()

    def load_residual_state_dict(self, state: dict[str, Tensor]) -> None:
        """What this rank of a job of the same size saved, the number of the step included.

        Random choices follow from it: with it, the optimizer's and the model's state, training goes on bit for bit.
        Raises ConfigError, before anything is changed, for the state of another model, scheme, rank or world size; for
        the last there is `resireduce.redistribute`.
        """
        self.refuse_within_step("load_residual_state_dict()")
        self.feedback.load_state_dict(state)

    def refuse_within_step(self, what: str) -> None:
        """Raise UsageError, which names `what` was called, if gradients of a step are under way."""
        if self._intake.has_begun:
            raise UsageError(f"{what} between backward() and step(): what is under way belongs to neither; call step()")

    # --- the backward pass ---

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward passes only add up; the next one outside sends the sum.

        Streamed, a full residual takes the gradients up; all others are held in `.grad`.
        """
        outer, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = outer

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's; not between `backward` and `step`, when gradients are already under way."""
        self._refuse_if_failed()
        if self._intake.has_begun:
            raise UsageError(
                "zero_grad() between backward() and step(): the gradients are already under way. Call it before "
                "backward(); to add up several passes use optimizer.no_sync() or backward_passes_per_step. After a "
                "backward pass that failed: build model and optimizer anew, on every rank, from a checkpoint"
            )
        self._restart()
        self.wrapped.zero_grad(set_to_none)

    @torch.no_grad()
    def _on_gradient(self, slot: Slot) -> None:
        """Autograd has finished with this parameter's gradient."""
        self._refuse_if_failed()
        if not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self._end_backward)
        if slot.complete:
            raise UsageError(
                f"a second backward() reached {slot.name!r} before step(). To add up several passes, run all but the "
                "last within optimizer.no_sync(), or give backward_passes_per_step to resireduce.distribute(...)"
            )
        slot.passes += 1
        slot.complete = self._syncing and slot.passes >= self.backward_passes_per_step
        if slot.dropped:
            slot.parameter.grad = None
        elif not slot.complete:
            self._intake.hold(slot)
        elif self._intake.waits:
            slot.seal()
        else:
            self._send(slot)

    def _end_backward(self) -> None:
        """Autograd has come to the end of a backward pass; it does not where one fails."""
        self._in_backward = False
        if self.streamed:
            self._updater.guard(self._intake.arrived)

    def _send(self, slot: Slot) -> None:
        """Compress a gradient that is complete, and launch what is ready."""
        self.queue.prefetch_after(slot)
        self._intake.take(slot, self.steps)
        self.queue.launch(self.steps)
        # Not early while gradients of earlier passes are in .grad: they would be taken for finished ones.
        if self.streamed and not self._intake.holds:
            self._updater.update_early(slot)

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise UsageError(
                "an earlier step failed, and ranks may have updated different parameters: build model and optimizer "
                "anew, on every rank, from a checkpoint"
            )

    # --- the step ---

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Bring the averages back and update all parameters. `closure`, if given, computes loss and gradients first.

        Raises NonFiniteGradient on all ranks if a gradient of one held NaN or infinity; with a GradScaler such a step
        is skipped instead.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_if_failed()
        if self._in_backward:
            raise UsageError(
                "step() after a backward() that did not come to its end: some gradients are under way, others are "
                "missing. Build model and optimizer anew, on every rank, from a checkpoint"
            )
        ready = self._intake.finish(self.steps)
        if ready:
            self._exchange()
        self.overflowed = not ready or self.queue.flagged
        self._restart()
        return loss

    def _exchange(self) -> None:
        """All that this rank has to send is compressed: launch the rest, receive, and update."""
        step, error = self.steps, self._intake.non_finite
        self.feedback.residual.end_step()
        self.queue.launch(step, complete=True)
        self._updater.finish(step, flag=error is not None)
        self.queue.finish(self._intake.arrived)
        if self.queue.flagged:
            self._fail_or_put_back(step, error)

    def _fail_or_put_back(self, step: int, error: NonFiniteGradient | None) -> None:
        """Some rank's gradient was not finite. What was sent of the others goes back, if the step can be skipped."""
        if self.grad_scaler is None:
            self._failed = True
            raise error or NonFiniteGradient("a gradient of another rank holds NaN or infinity; that rank says which")
        for slot in self._intake.arrived:
            if slot.sent is not None:
                self.feedback.put_back(slot.sent, slot.name)
        self.feedback.residual.end_step()
        self.feedback.residual.start_at(step)  # the step is taken again, with the same random choices
