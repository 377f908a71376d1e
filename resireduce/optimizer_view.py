"""What a distributed optimizer reports, saves and loads, and what it passes on to the wrapped one."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from resireduce.backward import BackwardPasses
from resireduce.comm.levels import Levels
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import UsageError, check_count
from resireduce.merging.costs import Costs
from resireduce.optimizer_wrapper import OptimizerWrapper
from resireduce.resumed import Resumed
from resireduce.step.exchange import Exchange
from resireduce.step.launch import LaunchQueue
from resireduce.step.slot import Slot

FREED = ("feedback", "levels", "slots", "grad_scaler", "_exchange", "_backward")
"""Attributes that a closed DistributedOptimizer no longer has."""
HARMLESS = ("train", "eval")
"""Methods of wrapped optimizers that do not read gradients."""


class OptimizerView(OptimizerWrapper):
    """The part of a DistributedOptimizer that no training loop needs to call."""

    feedback: ErrorFeedback
    levels: Levels
    slots: list[Slot]
    _closed: bool
    _exchange: Exchange
    _backward: BackwardPasses
    _resumed: Resumed

    @property
    def queue(self) -> LaunchQueue:
        """The queue of messages that are under way."""
        return self._exchange.queue

    @property
    def messages(self) -> list[list[str]]:
        """Names of the tensors that travel together, a list for each message, in launch order.

        Given as `merge`, with the same settings, it makes `resireduce.distribute` send the same messages.
        """
        return [[slot.name for slot in message] for message in self.queue.messages]

    @property
    def costs(self) -> Costs | None:
        """Times measured in the first steps, for a `merge` rule that uses them; None before then, and otherwise."""
        return self._exchange.profiler.costs

    @property
    def updates_in_backward(self) -> bool:
        """Whether parameters are updated during the backward pass."""
        return self._exchange.updater.in_backward

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes are added up for a step."""
        return self._backward.passes_per_step

    @property
    def steps(self) -> int:
        """How many steps have been taken, without those that were skipped."""
        return self._exchange.steps

    @property
    def grad_norm(self) -> Tensor | None:
        """With `max_grad_norm`: the global norm of the last step's averaged gradients before clipping, 0-D.

        Infinite if that step was skipped for overflow.
        """
        return self._exchange.updater.grad_norm

    @property
    def whole_gradients(self) -> dict[str, str]:
        """With `slices`: the large parameters whose gradients are still made whole, by name, and why."""
        return {} if self._backward.layers is None else dict(self._backward.layers.whole)

    @property
    def twice_gradients(self) -> dict[str, str]:
        """With `slices`: the large parameters whose gradients are made twice, some rows at a time, and why."""
        return {} if self._backward.layers is None else dict(self._backward.layers.twice)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state. Raises UsageError while `backward` has updated only some of it."""
        if "_exchange" in self.__dict__ and self.updates_in_backward:
            self.refuse_within_step("state_dict()")
        return super().state_dict()

    def residual_state_dict(self) -> dict[str, Tensor]:
        """Return this rank's residuals, velocities if momentum is corrected, and the compressor's state of each tensor.

        Save one file per rank: they differ. These are the tensors themselves, which further steps change.
        """
        self.refuse_within_step("residual_state_dict()")
        return self.feedback.state_dict(self.steps)

    def load_residual_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the `state` that this rank saved in a job of the same size, including the step number.

        Random choices follow from that number: with the optimizer's and the model's state as well, training goes on
        bit for bit. Raises ConfigError, before anything is changed, for the state of another model, scheme, rank or
        world size; for another world size use `resireduce.redistribute`.
        """
        self.refuse_within_step("load_residual_state_dict()")
        self.start_at(self.feedback.load_state_dict(state))

    def start_at(self, step: int) -> None:
        """Continue with step number `step`, counted from 0: random choices and densities follow from it."""
        check_count("step", step, of="steps")
        self.refuse_within_step("start_at()")
        self._resumed.residuals()
        self._exchange.steps = step
        self.feedback.begin_step(step)

    def refuse_within_step(self, what: str) -> None:
        """Raise UsageError, naming `what` was called, if gradients of a step are under way."""
        if self._exchange.intake.has_begun:
            raise UsageError(f"{what} between backward() and step(): what is under way belongs to neither; call step()")

    @property
    def state(self) -> Any:
        """The state of the wrapped optimizer, up to date."""
        self.flush()
        return self.wrapped.state

    @state.setter
    def state(self, state: Any) -> None:
        self.flush()
        self.wrapped.state = state

    def flush(self) -> None:
        """Update all parameters, and the optimizer's state, that `merge="dear"` would update when they are used.

        It waits for averages that are under way. Using a parameter does not require it; it is for uses that Python
        does not see: a parameter's memory held under another name, a CUDA graph. Without "dear" it does nothing.
        """
        if "_exchange" in self.__dict__:
            self._exchange.updater.flush()

    def __getattr__(self, name: str) -> Any:
        """Return what only the wrapped optimizer has, like `train()`. UsageError for what `close` has freed."""
        if name in FREED and self.__dict__.get("_closed"):
            raise UsageError("the optimizer is closed: train with optimizer.wrapped, or distribute the model again")
        if "wrapped" not in self.__dict__:
            return super().__getattribute__(name)
        value = getattr(self.wrapped, name)
        return partial(self._call, value) if inspect.ismethod(value) and name not in HARMLESS else value

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method that only the wrapped optimizer has; UsageError while gradients are those of this rank alone.

        SAM's `first_step`, or an update of a curvature estimate, would then make ranks differ.
        """
        if not self._closed and self._has_own_gradients() and self.levels.world.world_size > 1:
            raise UsageError(
                f"{method.__name__}() between backward() and step() would find gradients of this rank alone, and ranks "
                "would differ: call it after step(), or train without resireduce.distribute(...)"
            )
        return method(*args, **kwargs)

    def _has_own_gradients(self) -> bool:
        """Whether autograd has made a gradient in this step, which is this rank's own until it is averaged."""
        return self._exchange.intake.has_begun or any(slot.made is not None for slot in self.slots)
