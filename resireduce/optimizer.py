"""DistributedOptimizer: gradients go out as the backward pass produces them, and come back in `step`.

Kept gradients (the paper's): `.grad` lives on, and takes the averaged gradient. Streamed gradients: as soon as autograd
has finished a gradient it is absorbed by the residual, compressed, and freed; `step` brings the averages back a bounded
number of bytes at a time, and lets the wrapped optimizer update just those parameters.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.launch import BUCKET_BYTES, LaunchQueue
from resireduce.slot import Slot
from resireduce.streamed_away import StreamedAway
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
    ):
        super().__init__(optimizer)
        self.feedback, self.streamed = feedback, streamed
        self.backward_passes_per_step = backward_passes_per_step
        self.steps = 0
        self._syncing, self._failed = True, False
        self._slots = [Slot.of(index, name, p, feedback) for index, (name, p) in enumerate(parameters.items())]
        limit = sum(slot.nbytes for slot in self._slots) // 16
        self._queue = LaunchQueue(self._slots, feedback, limit)
        self._updater = Updater(optimizer, self._slots, self._queue, streamed=streamed, max_grad_norm=max_grad_norm)
        self._restart()
        for slot in self._slots:
            if feedback.keeps_residual(slot.name):
                feedback.residual.register(slot.name, slot.parameter)
        for slot in self._slots:
            slot.parameter.grad = None  # one from before is this rank's own, and would be taken for an average
            setattr(slot.parameter, DISTRIBUTED, True)
            slot.parameter.register_post_accumulate_grad_hook(lambda _, slot=slot: self._on_gradient(slot))

    def _restart(self) -> None:
        self._arrived: list[Slot] = []
        self._updater.restart()
        self._held = False  # whether an earlier pass of this step left gradients in .grad
        for slot in self._slots:
            slot.present, slot.passes, slot.version = False, 0, None

    @property
    def grad_norm(self) -> Tensor | None:
        """With `max_grad_norm`: the global norm of the last step's averaged gradients before clipping, 0-D."""
        return self._updater.grad_norm

    def residual_state_dict(self) -> dict[str, Tensor]:
        """This rank's residuals. They differ between ranks: save one file a rank."""
        return self.feedback.residual.state_dict()

    def load_residual_state_dict(self, state: dict[str, Tensor]) -> None:
        """This rank's residuals, as this rank of a job of the same size saved them, and the number of the step.

        Random choices follow from it: with it, the optimizer's and the model's state, training goes on bit for bit.
        """
        self.feedback.residual.load_state_dict(state)
        self.steps = self.feedback.residual.steps

    # --- the backward pass ---

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward passes only add to `.grad`; the next one outside sends the sum. Holds all gradients."""
        outer, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = outer

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's; not between `backward` and `step`, when gradients are already under way."""
        self._refuse_if_failed()
        if self._arrived:
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
        if slot.present:
            raise UsageError(
                f"a second backward() reached {slot.name!r} before step(). To add up several passes, run all but the "
                "last within optimizer.no_sync(), or give backward_passes_per_step to resireduce.distribute(...)"
            )
        slot.passes += 1
        if not self._syncing or slot.passes < self.backward_passes_per_step:
            self._held = True
            return
        self._take(slot)
        self._queue.launch(self.steps)
        if not self.streamed:
            return
        if not self._held:  # else gradients of earlier passes in .grad would be taken for finished ones
            self._updater.update_early()
        last = self._queue.last
        if last.present and last.parameter.grad is None:
            last.parameter.grad = StreamedAway.of(last.parameter)

    def _take(self, slot: Slot) -> None:
        """Compress the gradient; streamed, its payload is all that is left of it."""
        grad = slot.parameter.grad
        if grad is None:
            raise UsageError(
                f"the gradient of {slot.name!r} was dropped between two backward passes of one step: call zero_grad() "
                "only before the first"
            )
        if grad.layout != torch.strided:
            raise UsageError(f"the gradient of {slot.name!r} is sparse: make its layer with sparse=False")
        try:
            slot.payload = self.feedback.compress(grad.contiguous(), slot.name, self.steps)
        except NonFiniteGradient:
            self._failed = True
            raise
        slot.present = True
        self._arrived.append(slot)
        if self.streamed:
            slot.parameter.grad = None
            self._updater.dense_bytes += slot.nbytes if slot.dense else 0
        else:
            slot.seal()

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise UsageError(
                "an earlier gradient held NaN or infinity, and this step's messages are half sent: build model and "
                "optimizer anew, on every rank, from a checkpoint"
            )

    # --- the step ---

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Bring the averages back and update all parameters. `closure`, if given, computes loss and gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_if_failed()
        for slot in self._slots:
            if slot.passes and not slot.present:  # its only gradients came in earlier passes of this step
                self._take(slot)
        self._held = False
        self.feedback.residual.end_step()
        self._queue.launch(self.steps, complete=True)
        self._updater.finish(self.steps)
        self._queue.finish(self._arrived)
        self._restart()
        self.steps += 1
        return loss

    # --- what is alive at most ---

    def bounds(self) -> dict[str, int]:
        """Bytes alive at most beside the model states, at any time of a step in streamed mode.

        dense_bytes: gradients, dense payloads and averaged gradients: twice those of the largest layer (autograd makes
        the gradients of weight and bias together), and a message of small tensors with its parts. Tied parameters come
        on top: autograd holds their gradient from their last use to their first. local_bytes: this rank's compressed
        payloads. gathered_bytes: all ranks' payloads of the tensors under way.

        Holds in every step in which gradients arrive in the order of the first step, and in the first if that is the
        reverse order of the model's parameters. A gradient that comes late, or not at all on this rank, holds up those
        behind it: dense payloads then wait for `step()`, and so do messages of tensors that had no gradient here.
        With `max_grad_norm` all messages wait for the last one, so there is no bound but their sum.
        """
        payloads = {}
        for slot in self._slots:
            like = torch.empty(slot.parameter.shape, dtype=slot.parameter.dtype, device="meta")
            payloads[slot] = self.feedback.compressor_of(slot.name).compress(like, slot.name, 0)
        gathered = [self._queue.gathered_nbytes(slot, payload) for slot, payload in payloads.items()]
        small = sum(slot.nbytes for slot in self._slots if slot.small)
        return {
            "dense_bytes": 2 * (self._updater.chunk_bytes + min(BUCKET_BYTES, small)),
            "local_bytes": sum(payload.nbytes for slot, payload in payloads.items() if not slot.dense),
            "gathered_bytes": max(self._queue.gathered_limit, *gathered),
        }
