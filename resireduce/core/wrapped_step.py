"""How the wrapped optimizer's `step()` is called: once, or for a few parameters at a time where that is the same."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from resireduce.errors import UsageError
from resireduce.refusals import StepGuard
from resireduce.same_memory import TIE, Tied

# --- Torch's Adafactor, where it does not update each parameter from its own gradient and state alone ---


EPS_CURE = "give eps=(1e-7, 1e-3), say, or make a group for each dtype"


def shares_eps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is an Adafactor that takes one number for parameters of several dtypes, by its default.

    With `eps=(None, ...)`, it takes the dtype of the first parameter of a group that has a gradient, and uses the same
    number for those after it.
    """
    if not isinstance(optimizer, torch.optim.Adafactor):
        return False
    groups = [group["params"] for group in optimizer.param_groups if group["eps"][0] is None]
    return any(len({parameter.dtype for parameter in parameters}) > 1 for parameters in groups)


SEPARABLE = {
    "torch.optim": "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax Muon NAdam RAdam RMSprop Rprop SGD",
    "bitsandbytes.optim": "AdEMAMix8bit Adagrad8bit Adam8bit AdamW8bit Lion8bit RMSprop8bit SGD8bit",
    "torchao.optim": "Adam4bit Adam8bit AdamFp8 AdamW4bit AdamW8bit AdamWFp8",
}
"""By package, optimizers whose `step()` updates each parameter from its own gradient and state alone, so that it may be
called for a few parameters at a time. A class that is not listed says so by an attribute `step_is_separable = True`."""

MIB = 2**20


def is_separable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is one of SEPARABLE, or says so itself, and its `step` has not been replaced.

    A subclass is looked up by its own name, since its `step` may do anything.
    """
    kind, own = type(optimizer), vars(optimizer).get("step")
    if own is not None and (getattr(own, "__wrapped__", None) is not kind.step or not _is_of("torch", own)):
        return False  # another `step` than the one by which torch's schedulers count steps
    if "step_is_separable" in vars(kind):
        return bool(vars(kind)["step_is_separable"])
    package = next((one for one in SEPARABLE if f"{kind.__module__}.".startswith(f"{one}.")), None)
    if package is None or kind.__qualname__ not in SEPARABLE[package].split():
        return False
    step: Any = kind.step
    while step is not None and (_is_of(package, step) or _is_of("torch", step)):
        step = getattr(step, "__wrapped__", None)
    # Otherwise a function of another package was put into the class.
    return step is None and not shares_eps(optimizer)


def _is_of(package: str, function: Any) -> bool:
    """Whether `function` is written in `package`; functools.wraps gives a wrapper the name and module of another."""
    return f"{getattr(function, '__globals__', {}).get('__name__')}.".startswith(f"{package}.")


class WrappedStep:
    """Calls `optimizer.step()`, once or several times for a step of training, and its hooks once.

    Args:
        optimizer: whose parameters have their averages in `.grad` when it is called.
        streamed: whether averages are to be brought back, and freed, a few at a time where that is possible.
        tied: knows two of its parameters that lie in the same memory, if any do, so that all are updated at once.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, streamed: bool, tied: Tied | None = None):
        self.optimizer, self._streamed, self._tied = optimizer, streamed, tied

    @property
    def is_sliced(self) -> bool:
        """Whether `step()` is called for a few parameters at a time."""
        return self._streamed and (self._tied is None or self._tied.pair is None) and self.is_divisible

    @property
    def is_divisible(self) -> bool:
        """Whether `step()` could be called for a few parameters alone: a hook before it might need all gradients."""
        return not self.has_hooks_before and is_separable(self.optimizer)

    @property
    def has_hooks_before(self) -> bool:
        """Whether hooks other than the library's are called before `step()`."""
        hooks = [hook for hook in self.optimizer._optimizer_step_pre_hooks.values() if not isinstance(hook, StepGuard)]
        return bool(hooks or _global_optimizer_pre_hooks)

    def some(self) -> None:
        """Update the parameters that have a gradient, as a part of a step: without its hooks.

        Hooks are removed meanwhile, since a `step` that calls its base class's would run them there.
        """
        step, optimizer = type(self.optimizer).step, self.optimizer
        bare: Callable[..., object] = step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]
        hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        try:
            bare(optimizer)
        finally:
            optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks

    def part(self, groups: list[dict[str, Any]], stand_ins: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Update some parameters, as a part of a step, with `groups` in place of the optimizer's own.

        `stand_ins` are pairs of a parameter and the tensor that the groups hold instead: in its memory, with a
        gradient.
        """
        state, held = self.optimizer.state, self.optimizer.param_groups
        for parameter, other in stand_ins:
            if parameter in state:
                state[other] = state[parameter]
        self.optimizer.param_groups = groups
        try:
            self.some()
        finally:
            self.optimizer.param_groups = held
            for parameter, other in stand_ins:
                if other in state:
                    state[parameter] = state.pop(other)

    def without_update(self, loss: Tensor | float | None, then: Callable[[], None]) -> None:
        """Call `step()` itself while no parameter has a gradient, and `then` before the hooks that follow a step.

        loss: as for `whole`.
        """
        handle = self.optimizer.register_step_post_hook(lambda *_: then())
        self.optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
        try:
            self.whole(loss)
        finally:
            handle.remove()

    def whole(self, loss: Tensor | float | None = None, parameters: Sequence[nn.Parameter] = ()) -> None:
        """Call `step()` itself: the only call of a step, or the last.

        loss: what the closure given to the distributed `step` returned, if there was one; `parameters` are those that
        it was computed with. An optimizer that may need a closure gets one that returns this loss, once.
        """
        if loss is None or is_separable(self.optimizer):
            self.optimizer.step()
        else:
            self.optimizer.step(_Evaluated(self.optimizer, loss, parameters))  # type: ignore[arg-type]

    def cost(self, nbytes: int) -> str | None:
        """Return the warning to give if gradients are streamed and `step()` needs all `nbytes` of averages at once."""
        if not self._streamed:
            return None
        name, held = type(self.optimizer).__name__, f"so all averages, {nbytes / MIB:,.1f} MiB, are held at once for"
        if shares_eps(self.optimizer):
            return f"{name} takes one eps for parameters of several dtypes, {held} its step(): {EPS_CURE}"
        if not is_separable(self.optimizer):
            return (
                f"{name} is not known to update each parameter by itself, {held} its step(). If it does, say so by a "
                f"class attribute step_is_separable = True in {name}"
            )
        if self._tied is not None and self._tied.pair is not None:
            one, other = self._tied.pair
            return (
                f"{one!r} and {other!r} are two parameters in the same memory, which must not change before both "
                f"averages are there, {held} {name}.step(): {TIE}"
            )
        return None


class _Evaluated:
    """A closure that returns the loss from which the averaged gradients were computed."""

    def __init__(self, optimizer: torch.optim.Optimizer, loss: Tensor | float, parameters: Sequence[nn.Parameter]):
        self._name, self._loss, self._parameters = type(optimizer).__name__, loss, parameters
        self._versions = [parameter._version for parameter in parameters]
        self._calls = 0

    def __call__(self, *args: object, **kwargs: object) -> Tensor | float:
        """The loss. Raises UsageError if it is asked for with other parameters, or again."""
        self._calls += 1
        changed = self._versions != [parameter._version for parameter in self._parameters]
        if self._calls > 1 or changed:
            raise UsageError(
                f"{self._name}.step(closure) computes gradients several times a step, which are under way after the "
                "first; use an optimizer that takes a step from one gradient (SGD, Adam, ...)"
            )
        return self._loss
