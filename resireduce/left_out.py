"""What a step leaves out: parameters that no optimizer averages, and gradients that an outer optimizer expects."""

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import FrameType

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

from resireduce.attach import is_distributed
from resireduce.errors import caller, warn
from resireduce.orphaned import Orphans, after_steps

FIRST_LOOKS, INTERVAL = 16, 61
"""The model is checked at each of the first FIRST_LOOKS steps, and then at every INTERVAL-th, an odd number: so both
phases of training that alternates are seen."""
NOT_HELD = (
    "not by the optimizer given to resireduce.distribute(...), so that each rank has its own gradient of it: "
    "distribute the optimizer that holds it too, or average it yourself"
)
ASKS = frozenset({"grad", "average_parameters"})
"""What the step of an outer optimizer uses if it goes on with the parameters that have a gradient: `.grad` itself, or
torch's model averagers, as PostLocalSGDOptimizer."""


class Outside:
    """Watches for trained parameters of `model` that are not among `held`, given by name, and so are not averaged.

    Parameters may be unfrozen, and layers added or replaced, at any time. The model is held weakly. A gradient that is
    there at the start, as an average of an earlier stage, counts only once something is added to it. A parameter that a
    hook updates in the backward pass, and that has no gradient afterwards, is found by its version, or by its first
    row, as fused optimizers leave the version. Steps of other optimizers than `wrapped` are looked at, too: where they
    train a phase of their own, as an adapter that was added later, nothing of `held` has gradients, and nobody calls
    `warn`. `reason`, for the warning, says why they are not averaged, and the cure. Those of which `passes_over` is
    true, of a name and a parameter, are not looked at.
    """

    def __init__(
        self,
        model: nn.Module,
        held: Mapping[str, nn.Parameter],
        reason: str = NOT_HELD,
        wrapped: torch.optim.Optimizer | None = None,
        passes_over: Callable[[str, Tensor], bool] = lambda name, parameter: False,
    ):
        self._model, self._reason, self._passes_over = weakref.ref(model), reason, passes_over
        self._wrapped = None if wrapped is None else weakref.ref(wrapped)
        self._held = {id(one) for one in held.values()}
        self._told, self._before, self._then = (WeakTensorKeyDictionary() for _ in range(3))
        self._looks, self._steps = 0, 0
        after_steps(self)
        for _, one in self._others(model):
            self._is_used_up(one)
            if one.grad is not None and not is_distributed(one) and not one.grad.is_inference():
                self._before[one] = weakref.ref(one.grad), one.grad._version

    @torch.compiler.disable
    def warn(self) -> None:
        """Warn once about each that has a gradient now, unless another optimizer of the library averages it."""
        self._looks += 1
        model = self._model()
        if model is not None and _is_due(self._looks):
            self._tell({name: one for name, one in self._others(model) if self._has_new(one) or self._is_used_up(one)})

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step of `optimizer`: warn once about each parameter that it has trained, and that is not held.

        Steps within a backward pass, as hooks take them, are left to `warn`.
        """
        model, is_wrapped = self._model(), self._wrapped is not None and self._wrapped() is optimizer
        if model is None or is_wrapped or torch._C._current_graph_task_id() >= 0:
            return
        trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if trained <= self._held:
            return
        self._steps += 1
        if _is_due(self._steps):
            self._tell({name: one for name, one in self._others(model) if id(one) in trained and self._has_new(one)})

    def _tell(self, new: Mapping[str, Tensor]) -> None:
        """Warn about those of the `new` that no other optimizer of the library averages."""
        found = {name: one for name, one in new.items() if not is_distributed(one) and one not in self._told}
        if not found:
            return
        self._told.update(dict.fromkeys(found.values(), True))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        warn(f"{next(iter(found))!r}{more}: trained, but {self._reason}")

    def _others(self, model: nn.Module) -> Iterable[tuple[str, Tensor]]:
        named = model.named_parameters()
        return ((name, one) for name, one in named if id(one) not in self._held and not self._passes_over(name, one))

    def _has_new(self, parameter: Tensor) -> bool:
        """Whether `.grad` of `parameter` holds something that it did not hold at the start."""
        before = self._before.get(parameter)
        if before is None or parameter.grad is None:
            return parameter.grad is not None
        return before[0]() is not parameter.grad or before[1] != parameter.grad._version

    def _is_used_up(self, parameter: Tensor) -> bool:
        """Whether a hook of somebody has taken a step with the gradient of `parameter`, and let that go."""
        hooks = (parameter._post_accumulate_grad_hooks or {}).values()
        if not (hasattr(parameter, "_in_backward_optimizers") or any(not isinstance(one, Orphans) for one in hooks)):
            return False
        version, row = self._then.get(parameter, (None, None))
        self._then[parameter] = parameter._version, _first_row(parameter)
        return version is not None and (version != parameter._version or differ(self._then[parameter][1], row))


def _is_due(count: int) -> bool:
    """Whether the model is checked at the step of this number."""
    return count <= FIRST_LOOKS or count % INTERVAL == 0


def _first_row(parameter: Tensor) -> Tensor:
    """Return a copy of the first row of `parameter`; of what has no values that can be looked at, something empty."""
    if parameter.numel() == 0 or parameter.is_meta or is_traceable_wrapper_subclass(parameter):
        return torch.empty(0, device="cpu")
    row: Tensor = parameter.detach()[(0,) * (parameter.dim() - 1)]
    return row.clone()


def differ(parameter: Tensor, values: Tensor) -> bool:
    """Whether `parameter` has other `values` than it had; False once it was converted, which is refused elsewhere."""
    is_converted = (values.dtype, values.device) != (parameter.dtype, parameter.device)
    return not is_converted and not torch.equal(parameter, values)


def warn_of_outer(wrapped: torch.optim.Optimizer) -> None:
    """Warn if an outer optimizer calls the step that updates by `wrapped`, and does more than to pass the call on.

    Lookahead and others go on with the parameters that have a gradient, but after the step streamed gradients are gone.
    An optimizer that only passes calls on has the state of `wrapped`, and its step names nothing of ASKS.
    """
    frame = _outer_step()
    # Reading `f_locals` keeps a frame's objects alive until it ends: a step's ends soon, a script's may not.
    outer = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
    asks = not ASKS.isdisjoint(frame.f_code.co_names)
    does_more = asks or getattr(outer, "state", wrapped.state) is not wrapped.state
    if hasattr(outer, "param_groups") and does_more:
        name = type(outer).__name__
        can_be_inside = hasattr(outer, "_optimizer_step_pre_hooks")
        inside = f"put it inside, distribute(model, {name}(...)), or " if can_be_inside else ""
        warn(
            f"{name} calls step() of what resireduce.distribute(...) returned, after which streamed gradients are gone"
            f": if it then asks which parameters have a .grad, it leaves out all; {inside}give gradients='kept'"
        )


def _outer_step() -> FrameType:
    """Return the frame of the script that takes a step, or that of torch's own optimizer around the library's."""
    last, frame = caller(), sys._getframe()
    while frame.f_back and frame is not last:
        module = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "step" and module.startswith("torch.distributed.optim."):
            return frame
        frame = frame.f_back
    return frame
