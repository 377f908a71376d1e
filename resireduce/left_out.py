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
from resireduce.orphaned import Orphans, objects

FIRST_LOOKS, INTERVAL = 16, 61
"""The model is checked at each of the first FIRST_LOOKS steps, and then at every INTERVAL-th, an odd number: so both
phases of training that alternates are seen."""
NOT_HELD = (
    "not by the optimizer given to resireduce.distribute(...), so that each rank has its own gradient of it: "
    "distribute the optimizer that holds it too, or average it yourself"
)
BYPASSED = (
    "parameters have changed after a backward pass, but not by step() of what resireduce.distribute(...) returned"
    ": another optimizer updates them by the gradients of this rank alone, so that ranks differ. Call the step() of "
    "that one, or distribute the other; if you change them yourself, alike on all ranks, nothing is wrong"
)
BYPASS_WATCHED = 4
"""How many parameters are watched: the smallest ones."""
ASKS = frozenset({"grad", "average_parameters"})
"""What the step of an outer optimizer uses if it goes on with the parameters that have a gradient: `.grad` itself, or
torch's model averagers, as PostLocalSGDOptimizer."""


class Outside:
    """Watches for trained parameters of `model` that are not among `held`, given by name, and so are not averaged.

    Parameters may be unfrozen, and layers added or replaced, at any time. The model is held weakly. A gradient that is
    there at the start, as an average of an earlier stage, counts only once something is added to it. A parameter that a
    hook updates in the backward pass, and that has no gradient afterwards, is found by its version, or by its first
    row, as fused optimizers leave the version. `reason`, for the warning, says why they are not averaged, and the cure.
    Those of which `passes_over` is true, of a name and a parameter, are not looked at.
    """

    def __init__(
        self,
        model: nn.Module,
        held: Mapping[str, nn.Parameter],
        reason: str = NOT_HELD,
        passes_over: Callable[[str, Tensor], bool] = lambda name, parameter: False,
    ):
        self._model, self._reason, self._passes_over = weakref.ref(model), reason, passes_over
        self._held = {id(one) for one in held.values()}
        self._told, self._before, self._then = (WeakTensorKeyDictionary() for _ in range(3))
        self._looks = 0
        for _, one in self._others(model):
            self._is_used_up(one)
            if one.grad is not None and not is_distributed(one) and not one.grad.is_inference():
                self._before[one] = weakref.ref(one.grad), one.grad._version

    @torch.compiler.disable
    def warn(self) -> None:
        """Warn once about each that has a gradient now, unless another optimizer of the library averages it."""
        self._looks += 1
        model = self._model()
        if model is None or (self._looks > FIRST_LOOKS and self._looks % INTERVAL):
            return
        new = {name: one for name, one in self._others(model) if self._has_new(one) or self._is_used_up(one)}
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
        return version is not None and (version != parameter._version or _differ(self._then[parameter][1], row))


class Bypassed:
    """Warns once if parameters change after a backward pass, but not by a step that averages their kept gradients.

    A few small ones are watched, by their version and, in the first passes on a CPU, by their values too: fused
    optimizers do not tell autograd that they change a parameter, and on a GPU the host would wait for values.

    Args:
        parameters: those whose gradients are averaged.
        wrapped: the optimizer whose steps average them.
    """

    def __init__(self, parameters: Iterable[Tensor], wrapped: torch.optim.Optimizer):
        plain = [one for one in parameters if not is_traceable_wrapper_subclass(one)]
        self._watched = {id(one) for one in sorted(plain, key=Tensor.numel)[:BYPASS_WATCHED]}
        self._wrapped = wrapped
        self._looks = FIRST_LOOKS
        self._then: dict[int, tuple[Tensor, int, Tensor | None]] = {}

    def note(self, parameter: Tensor) -> None:
        """Look at `parameter`, whose gradient autograd has finished."""
        if id(parameter) not in self._watched:
            return
        if id(parameter) not in self._then:
            values = parameter.detach().clone() if self._looks and parameter.is_cpu else None
            self._then[id(parameter)] = parameter, parameter._version, values
        else:
            self._look(self._then[id(parameter)])

    def note_step(self) -> None:
        """Look whether another optimizer has taken a step before this one; parameters may be changed by hand."""
        if any(map(_has_changed, self._then.values())) and self._others_hold():
            self._warn()

    def restart(self, by_step: bool) -> None:
        """Begin the next step, or, if not `by_step`, let the gradients of this one go."""
        for one in () if by_step else tuple(self._then.values()):
            self._look(one)
        self._looks -= bool(self._looks and self._then)
        self._then.clear()

    def _look(self, then: tuple[Tensor, int, Tensor | None]) -> None:
        if self._watched and _has_changed(then):
            self._warn()

    def _warn(self) -> None:
        self._watched.clear()
        warn(BYPASSED)

    def _others_hold(self) -> bool:
        """Whether an optimizer that does not just pass calls on to this one has parameters that are looked at."""
        lists = (getattr(one, "param_groups", []) for one in objects(torch.optim.Optimizer))
        groups = [group for one in lists if one is not self._wrapped.param_groups for group in one]
        return any(id(one) in self._watched for group in groups for one in group["params"])


def _has_changed(then: tuple[Tensor, int, Tensor | None]) -> bool:
    """Whether a parameter has another version, or other values where they are known, than it had."""
    parameter, version, values = then
    return parameter._version != version or (values is not None and _differ(parameter, values))


def _first_row(parameter: Tensor) -> Tensor:
    """Return a copy of the first row of `parameter`; of what has no values that can be looked at, something empty."""
    if parameter.numel() == 0 or parameter.is_meta or is_traceable_wrapper_subclass(parameter):
        return torch.empty(0, device="cpu")
    row: Tensor = parameter.detach()[(0,) * (parameter.dim() - 1)]
    return row.clone()


def _differ(parameter: Tensor, values: Tensor) -> bool:
    is_converted = (values.dtype, values.device) != (parameter.dtype, parameter.device)  # which is refused elsewhere
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
