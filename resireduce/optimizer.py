"""DistributedOptimizer: gradients go out as the backward pass produces them, and their averages come back in `step`.

Streamed gradients: as soon as autograd has finished a gradient, it is absorbed by the residual, compressed, and freed;
`step` receives the averages a bounded number of bytes at a time, and lets the wrapped optimizer update just those
parameters. Kept gradients (the paper's): `.grad` stays, and receives the averaged gradient; unless they overlap with
the backward pass, nothing is done before `step`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import torch
from torch import nn

from resireduce.backward import BackwardPasses
from resireduce.comm.levels import Levels
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import UsageError, warn
from resireduce.left_out import Outside, warn_of_outer
from resireduce.optimizer_view import FREED, OptimizerView
from resireduce.optimizer_wrapper import takes_one
from resireduce.orphaned import warn_of_scaler
from resireduce.refusals import refuse_capture
from resireduce.resumed import Resumed, only_makes_state
from resireduce.settings import Settings
from resireduce.step.exchange import Exchange
from resireduce.step.make_slots import make_slots
from resireduce.step.outdated import QUIET

ZEROS = (
    "zero_grad(set_to_none=False): streamed gradients are let go all the same, so that a layer that a step does not "
    "use is left as it is, where zeros would let momentum and weight decay move it; for these give gradients='kept'"
)
WITHIN_BACKWARD = (
    "step() was called within a backward pass, as by a hook: call it when backward() has returned. To update parameters"
    " within the backward pass, give one optimizer of all parameters and update='in_backward' (with compressor='none') "
    "to resireduce.distribute(...)"
)
UNFINISHED = (
    "step() after a backward() that did not come to its end: some gradients are under way, others are missing. Build "
    "model and optimizer anew, on every rank, from a checkpoint"
)


class DistributedOptimizer(OptimizerView):
    """Made by `resireduce.distribute`, and used in place of the wrapped one: `zero_grad()`, `backward()`, `step()`.

    Args:
        optimizer: the wrapped optimizer.
        model: the model to train.
        parameters: the parameters to average, by name, in the order of the model.
        feedback: compresses and averages gradients.
        settings: what `resireduce.distribute` was given, checked.
        levels: the ranks, as one level or two.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        feedback: ErrorFeedback,
        settings: Settings,
        levels: Levels,
    ):
        super().__init__(optimizer)
        self.levels = levels
        self.feedback, self.streamed, self.grad_scaler = feedback, settings.streamed, settings.scaler
        self.overflowed = False
        """With a GradScaler: whether the last step was skipped, because a gradient of some rank overflowed."""
        self._closed, self._zeroes_as_asked = False, takes_one(optimizer.zero_grad)
        self.slots = make_slots(parameters, feedback, levels.node, settings.merge == "hybrid")
        others = [one for name, one in model.named_parameters() if name not in parameters]
        self._exchange = Exchange(optimizer, self.slots, feedback, settings, levels, others)
        for slot in self.slots:
            feedback.register(slot.name, slot.template)
        self._outside, self._resumed = Outside(model, parameters, wrapped=optimizer), Resumed(optimizer)
        # Last, as no hook may stay on a model that is refused. At the end of a pass `_outside` looks for gradients that
        # no optimizer averages, before the zero_grad() of another one clears them.
        self._backward = BackwardPasses(model, optimizer, self._exchange, settings, self._outside.warn)
        self._restart()

    def _restart(self, by_step: bool = False) -> None:
        self._backward.restart(by_step)
        with QUIET():
            self._exchange.restart()

    # --- the backward pass ---

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context in which backward passes only add up gradients; the next pass outside it sends the sum.

        Streamed gradients are absorbed by full residuals; all others are held in `.grad`.
        """
        with self._backward.only_adding_up():
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, as the wrapped optimizer does.

        Raises UsageError between `backward` and `step`, and while a CUDA graph is recorded.
        """
        refuse_capture(self.slots[0].parameter.device)
        self._exchange.refuse_if_failed()
        if self._exchange.intake.has_begun:
            raise UsageError(
                "zero_grad() between backward() and step(): the gradients are already under way. Call it before "
                "backward(); to add up several passes use optimizer.no_sync() or backward_passes_per_step. If they "
                "came from a loss of another model (a GAN's generator, through the discriminator): call "
                "requires_grad_(False) on this one while that is computed. If the loss was for the gradient of an "
                "input: use torch.autograd.grad(loss, input). To leave out passes that are added up already, as "
                "those left over at the end of an epoch: gradients='kept' (without overlap=True), or take the step. "
                "After a backward pass that failed: build model and optimizer anew, on every rank, from a checkpoint"
            )
        self._restart()
        if self.streamed and not set_to_none:
            warn(ZEROS)
        if not set_to_none:
            self.flush()
        self._exchange.updater.let_gradients_go()
        with QUIET():
            self.wrapped.zero_grad(*([set_to_none] if self._zeroes_as_asked else []))

    # --- the step ---

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Receive the averages and update all parameters. `closure`, if given, computes loss and gradients first.

        Raises NonFiniteGradient on all ranks if a gradient on any of them held NaN or infinity; with a GradScaler such
        a step is skipped instead.
        """
        return self._take_step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch would run global hooks here, and in the wrapped one again

    # Where a whole training step is compiled. Not `step` itself: torch 2.9, asked to compile it, loses its self.
    @torch.compiler.disable(reason="messages leave in it")
    @torch.no_grad()
    def _take_step(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        refuse_capture(self.slots[0].parameter.device)
        self._exchange.refuse_if_failed()
        self.flush()
        if self._backward.under_way:
            raise UsageError(WITHIN_BACKWARD if torch._C._current_graph_task_id() >= 0 else UNFINISHED)
        self._exchange.updater.refuse()
        self._outside.warn()
        self._backward.bypassed.note_step()
        if self.streamed and self.steps == 0:
            warn_of_outer(self.wrapped)
        with self._backward.attachment.stepping():
            if not self._has_own_gradients() and only_makes_state(
                self.wrapped, [slot.parameter for slot in self.slots]
            ):
                self.wrapped.step()
                return loss
            self._resumed.warn(self.feedback.residual)
            if self.steps == 0 and self.grad_scaler is None and self._exchange.world_size > 1:
                warn_of_scaler()
            self.overflowed = not self._exchange.take_step(loss)
        self._restart(by_step=True)
        return loss

    # --- the end ---

    def close(self) -> None:
        """Remove all hooks from the model, and free residuals: it then trains plainly, or can be distributed again.

        Messages of an unfinished step are lost; updates of finished steps are not. The wrapped optimizer,
        `optimizer.wrapped`, keeps its state. Calling it again does nothing.
        """
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._backward.end()
            self._resumed.end()
            self.levels.close()
            self._closed = True
            for name in FREED:
                delattr(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the optimizer."""
        self.close()
