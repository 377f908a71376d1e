"""The optimizer that `resireduce.distribute` returns: around the wrapped one, with the same parameter groups and state.

Streamed gradients: as soon as autograd has finished those of a bucket, they are compensated, compressed, and freed;
`step` receives the averages a bounded number of bytes at a time, and lets the wrapped optimizer update just those
parameters. Kept gradients (the paper's): nothing is done before `step`; `.grad` then receives the averaged gradient."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from resireduce.comm.nodes import Levels
from resireduce.core.bucket import Slot, Stage, make_slots
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.hooks import BackwardPasses
from resireduce.errors import UsageError, check_count, warn
from resireduce.forms import AddingUp, build_exchange
from resireduce.merging.rules import Costs
from resireduce.settings import Settings
from resireduce.watchers import NOT_HELD, OtherSteps, Resumed, only_makes_state

FREED = ("feedback", "levels", "slots", "grad_scaler", "resumed", "_others", "_exchange", "_backward")
"""Attributes that a closed DistributedOptimizer no longer has."""
UNFINISHED = (
    "step() was called within a backward pass, as by a hook, or after one that did not come to its end: some gradients "
    "are under way, others are missing. Call it when backward() has returned; to update parameters within it, give one "
    "optimizer of all parameters and update='in_backward' (with compressor='none') to resireduce.distribute(...). "
    "After a pass that failed: build model and optimizer anew, on every rank, from a checkpoint"
)


class NoSync(partial[AbstractContextManager[None]]):
    """A function that returns a context. A copy of it, or a pickle, does nothing."""

    def __reduce__(self) -> Any:
        return partial, (nullcontext,)


class Resumable:
    """What holds this rank's residuals: the common base of a distributed optimizer and of the hooks of wrappers."""

    feedback: ErrorFeedback
    slots: list[Slot]
    resumed: Resumed
    steps: int
    """How many steps have been taken, without those that were skipped."""

    def residual_state_dict(self) -> dict[str, Tensor]:
        """Return this rank's residuals, velocities if momentum is corrected, and the compressor's state of each tensor.

        Save one file per rank: they differ. These are the tensors themselves, which further steps change. Raises
        UsageError within a step, which has updated only some of them.
        """
        self._refuse_within_step("residual_state_dict()")
        return self.feedback.state_dict(self.steps)

    def load_residual_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the `state` that this rank saved in a job of the same size, including the step number.

        Random choices follow from that number: with the optimizer's and the model's state as well, training goes on
        bit for bit. Raises ConfigError, before anything is changed, for the state of another model, scheme, rank or
        world size; for another world size use `resireduce.redistribute`. Raises UsageError within a step.
        """
        self._refuse_within_step("load_residual_state_dict()")
        self.start_at(self.feedback.load_state_dict(state))

    def start_at(self, step: int) -> None:
        """Continue with step number `step`, counted from 0: random choices and densities follow from it.

        Raises UsageError within a step.
        """
        check_count("step", step, of="steps")
        self._refuse_within_step("start_at()")
        self.resumed.has_residuals = True
        self.steps = step
        self.feedback.begin_step(step)

    def _refuse_within_step(self, what: str) -> None:
        if self._is_within_step:
            raise UsageError(
                f"{what} between backward() and step(), within a backward pass, or after one that failed half-way: "
                "some residuals are of this step, and others of the last; call step() first (with a wrapper, let "
                "backward() return), or start from a checkpoint"
            )

    @property
    def _is_within_step(self) -> bool:
        """Whether gradients of a step are under way, perhaps of one that has failed half-way."""
        raise NotImplementedError


class DistributedOptimizer(torch.optim.Optimizer, Resumable):
    """Made by `resireduce.distribute`, and used in place of the wrapped one: `zero_grad()`, `backward()`, `step()`.

    It shares `param_groups`, `state`, `defaults` and `state_dict` with the optimizer `wrapped`, so that schedulers work
    on either.
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
        self.wrapped = optimizer
        # What Optimizer.__init__ sets up, but for parameter groups. Hooks are those of the wrapped optimizer: they run
        # when it has the averages and its state.
        super().__setstate__({name: one for name, one in vars(optimizer).items() if name.startswith("_optimizer_")})
        self.levels = levels
        self.feedback, self.streamed, self.grad_scaler = feedback, settings.streamed, settings.scaler
        self.updates_in_backward = settings.in_backward
        """Whether parameters are updated during the backward pass."""
        self.backward_passes_per_step = settings.backward_passes_per_step
        """How many backward passes are added up for a step."""
        self.overflowed = False
        """With a GradScaler: whether the last step was skipped, because a gradient of some rank overflowed."""
        self._closed = False
        self.slots = make_slots(parameters, feedback, levels.node, settings.merge == "hybrid")
        others = [one for name, one in model.named_parameters() if name not in parameters]
        self._exchange = build_exchange(optimizer, self.slots, feedback, settings, levels, others)
        alone = settings.streamed or levels.world.world_size == 1
        self._others = OtherSteps(model, parameters.values(), NOT_HELD, () if alone else self.slots)
        self.resumed = Resumed(feedback.residual)
        self.resumed.watch(optimizer)
        self.before_step: list[Callable[[], object]] = [self._exchange.updater.check_parameters]
        """What is called before a step, which it may refuse; whoever builds the optimizer may add to it."""
        self.after_step: list[Callable[[], object]] = [self.resumed.after_step]
        """What is called when a step has been taken, or skipped for overflow."""
        self._exchange.restart()
        # Last, as no hook may stay on a model that is refused.
        self._backward = BackwardPasses(model, optimizer, self._exchange, settings)
        if settings.backward_passes_per_step > 1:
            self._add_up(settings.backward_passes_per_step)

    # --- the backward pass ---

    @property
    def no_sync(self) -> "NoSync":
        """What returns a context in which backward passes only add up gradients; the next pass outside it sends them.

        Streamed gradients are absorbed by full residuals; all others are held in `.grad`. Trainers find it where it is
        put: `model.no_sync = optimizer.no_sync`. A copy of that model adds up nothing, as it trains plainly.
        """
        return NoSync(DistributedOptimizer._only_adding_up, self)

    @contextmanager
    def _only_adding_up(self) -> Iterator[None]:
        passes = self._add_up(last=1)
        outer, passes.last = passes.last, math.inf
        try:
            yield
        finally:
            passes.last = outer

    def _add_up(self, last: int) -> AddingUp:
        """Return what adds up passes, from now on, of which number `last` ends a step, unless there is one already."""
        intake = self._backward.intake
        if not isinstance(intake, AddingUp):
            intake = self._backward.intake = AddingUp(self._exchange, last)
            self.before_step.append(intake.finish)
        return intake

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, as the wrapped optimizer does.

        Raises UsageError between `backward` and `step`, and while a CUDA graph is recorded.
        """
        self._exchange.refuse_if_failed()
        if self._is_within_step:
            raise UsageError(
                "zero_grad() between backward() and step(): the gradients are already under way. Call it before "
                "backward(); to add up several passes use optimizer.no_sync() or backward_passes_per_step. If they "
                "came from a loss of another model (a GAN), call requires_grad_(False) on this one for its time; if "
                "from one for the gradient of an input, use torch.autograd.grad(loss, input). To leave out passes that "
                "are added up, as those left over at the end of an epoch: gradients='kept' or take the step. After a "
                "backward pass that failed: build model and optimizer anew, on every rank, from a checkpoint"
            )
        self._backward.under_way = False
        self._exchange.restart()
        if not set_to_none and self.streamed:
            warn(
                "zero_grad(set_to_none=False): streamed gradients are let go all the same, so that a layer that a step "
                "does not use is left as it is, where zeros would let momentum and weight decay move it; for these "
                "give gradients='kept'"
            )
        self.wrapped.zero_grad(*([] if set_to_none else [False]))  # that of some optimizers takes no argument

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
        self._exchange.refuse_if_failed()
        if self._backward.under_way:
            raise UsageError(UNFINISHED)
        if not self._has_own_gradients() and only_makes_state(self.wrapped, [slot.parameter for slot in self.slots]):
            with self._backward.step_guard:
                self.wrapped.step()
            return loss
        for look in self.before_step:
            look()
        with self._backward.step_guard:
            self.overflowed = not self._exchange.take_step()
        for look in self.after_step:
            look()
        self._exchange.restart()
        return loss

    # --- the end ---

    def close(self) -> None:
        """Remove all hooks from the model, and free residuals: it then trains plainly, or can be distributed again.

        Messages of an unfinished step are lost. The wrapped optimizer, `optimizer.wrapped`, keeps its state. Calling it
        again does nothing.
        """
        if self._closed:
            return
        self._backward.end()
        self.before_step, self.after_step = [], []
        self.levels.close()
        self._closed = True
        for name in FREED:
            delattr(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the wrapped optimizer, seen through this one ---

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what only the wrapped optimizer has on that, from which it is read; refuse another `wrapped`."""
        wrapped = self.__dict__.get("wrapped")
        if name == "wrapped" and wrapped is not None and value is not wrapped:
            raise UsageError(
                "wrapped: another optimizer in the place of the first would take no steps. To go on with it, keep "
                "copy.deepcopy(optimizer.residual_state_dict()) of what resireduce.distribute(...) returned, close() "
                "that, distribute the other, and give it what was kept by load_residual_state_dict(...)"
            )
        known = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if not known and wrapped is not None and hasattr(wrapped, name):
            setattr(wrapped, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Raise UsageError: torch's GradScaler asks for it before a step, too late to unscale gradients."""
        raise UsageError(
            "torch's GradScaler cannot unscale gradients that are under way already: use resireduce.GradScaler and "
            "give it to resireduce.distribute(grad_scaler=...), or bfloat16 autocast, which needs no scaling"
        )

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raise UsageError: copies would not get gradients."""
        raise UsageError(
            "a DistributedOptimizer cannot be copied or pickled; save state_dict() and residual_state_dict(), and call "
            "resireduce.distribute(...) again"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state. Raises UsageError while `backward` has updated only some of it."""
        if self.updates_in_backward and not self._closed:
            self._refuse_within_step("state_dict()")
        return self.wrapped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load `state_dict` into the wrapped optimizer."""
        self.wrapped.load_state_dict(state_dict)

    # --- what it reports ---

    @property
    def parts(self) -> dict[str, Any]:
        """What takes a step, by name, for those who measure it; None for a part that is not there."""
        exchange, queue = self._exchange, self._exchange.queue
        parts = {"exchange": exchange, "feedback": self.feedback, "finiteness": self.feedback.finiteness}
        parts |= {"queue": queue, "updater": exchange.updater}
        return parts | dict.fromkeys(("scatter", "gather"), None if self.levels.node is None else queue.route)

    @property
    def messages(self) -> list[list[str]]:
        """Names of the tensors that travel together, a list for each message, in launch order.

        Given as `merge`, with the same settings, it makes `resireduce.distribute` send the same messages.
        """
        return [[slot.name for slot in bucket.slots] for bucket in self._exchange.queue.buckets]

    @property
    def costs(self) -> Costs | None:
        """Times measured in the first steps, for a `merge` rule that uses them; None before then, and otherwise."""
        return self._exchange.queue.costs

    @property
    def steps(self) -> int:
        """How many steps have been taken, without those that were skipped."""
        return self._exchange.steps

    @steps.setter
    def steps(self, step: int) -> None:
        self._exchange.steps = step

    @property
    def grad_norm(self) -> Tensor | None:
        """With `max_grad_norm`: the global norm of the last step's averaged gradients before clipping, 0-D.

        Infinite if that step was skipped for overflow.
        """
        updater = self._exchange.updater
        is_infinite = self.overflowed and updater.largest is not None
        return torch.tensor(math.inf, device="cpu") if is_infinite else updater.grad_norm

    @property
    def _is_within_step(self) -> bool:
        return any(slot.stage is not Stage.OPEN for slot in self.slots)

    def __getattr__(self, name: str) -> Any:
        """Return what only the wrapped optimizer has, like `train()`. UsageError for what `close` has freed."""
        if name in FREED and self.__dict__.get("_closed"):
            raise UsageError("the optimizer is closed: train with optimizer.wrapped, or distribute the model again")
        if "wrapped" not in self.__dict__:
            return super().__getattribute__(name)
        value = getattr(self.wrapped, name)
        reads_gradients = inspect.ismethod(value) and name not in ("train", "eval")
        return partial(self._call, value) if reads_gradients else value

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method that the wrapped optimizer has, as SAM's; UsageError while gradients are of this rank alone."""
        if not self._closed and self._has_own_gradients() and self.levels.world.world_size > 1:
            raise UsageError(
                f"{method.__name__}() between backward() and step() would find gradients of this rank alone, and ranks "
                "would differ: call it after step(), or train without resireduce.distribute(...)"
            )
        return method(*args, **kwargs)

    def _has_own_gradients(self) -> bool:
        """Whether autograd has made a gradient in this step, which is this rank's own until it is averaged."""
        return any(slot.made is not None for slot in self.slots)
