"""What a step leaves out: parameters that nobody averages, and what an optimizer around this one does after it."""

import weakref
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

from resireduce.attach import is_distributed
from resireduce.errors import caller, warn

FIRST_LOOKS, INTERVAL = 16, 61
"""The model is checked at each of the first steps, and then at intervals of so many: an odd number, so that it meets
both phases of training that alternates."""
NOT_HELD = (
    "not by the optimizer given to resireduce.distribute(...), so that each rank has its own gradient of it: "
    "distribute the optimizer that holds it too, or average it yourself"
)
BYPASSED = (
    "parameters have changed between two backward passes, but not by step() of what resireduce.distribute(...) returned"
    ": another optimizer updates them by the gradients of this rank alone, so that ranks differ. Call the step() of "
    "that one, or distribute the other; if you change them yourself, alike on all ranks, nothing is wrong"
)
BYPASS_WATCHED = 4
"""How many parameters are looked at, of the smallest."""


class Outside:
    """The parameters of `model` that are trained and are none of `held`, which are given by name.

    Parameters may be unfrozen, and layers added or replaced, at any time. The model is held weakly. A gradient that is
    there already, as the averages of an earlier stage, counts only once something is added to it. `reason` says who
    does not know such a one, and the cure.
    """

    def __init__(self, model: nn.Module, held: Mapping[str, nn.Parameter], reason: str = NOT_HELD):
        self._model, self._reason = weakref.ref(model), reason
        self._held = {id(one) for one in held.values()}
        self._told, self._before = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
        self._looks = 0
        for _, one in self._others(model):
            if one.grad is not None and not is_distributed(one) and not one.grad.is_inference():
                self._before[one] = weakref.ref(one.grad), one.grad._version

    @torch.compiler.disable
    def warn(self) -> None:
        """Warn once about each that has a gradient now, which no other optimizer of the library averages."""
        self._looks += 1
        model = self._model()
        if model is None or (self._looks > FIRST_LOOKS and self._looks % INTERVAL):
            return
        new = {name: one for name, one in self._others(model) if one.grad is not None and not self._is_left(one)}
        found = {name: one for name, one in new.items() if not is_distributed(one) and one not in self._told}
        if not found:
            return
        self._told.update(dict.fromkeys(found.values(), True))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        warn(f"{next(iter(found))!r}{more}: trained, but {self._reason}")

    def _others(self, model: nn.Module) -> Iterable[tuple[str, Tensor]]:
        return ((name, one) for name, one in model.named_parameters() if id(one) not in self._held)

    def _is_left(self, parameter: Tensor) -> bool:
        """Whether `.grad` of `parameter` holds what it held at the start, and nothing has been added to it."""
        before = self._before.get(parameter)
        if before is None or parameter.grad is None:
            return False
        return before[0]() is parameter.grad and before[1] == parameter.grad._version


class Bypassed:
    """Warns once of parameters that change between two backward passes, kept gradients of which no step has averaged.

    Some are looked at, which take little memory, by their version, and in the first passes by their values too, since
    fused optimizers do not tell autograd that they change a parameter: on a CPU, as the host would wait for a GPU.

    Args:
        parameters: those whose gradients are averaged.
    """

    def __init__(self, parameters: Iterable[Tensor]):
        plain = [one for one in parameters if not is_traceable_wrapper_subclass(one)]
        self._watched = {id(one) for one in sorted(plain, key=Tensor.numel)[:BYPASS_WATCHED]}
        self._looks = FIRST_LOOKS
        self._then: dict[int, tuple[int, Tensor | None]] = {}

    def note(self, parameter: Tensor) -> None:
        """Look at `parameter`, whose gradient autograd has finished."""
        if id(parameter) not in self._watched:
            return
        if id(parameter) not in self._then:
            values = parameter.detach().clone() if self._looks and parameter.is_cpu else None
            self._then[id(parameter)] = parameter._version, values
            return
        version, values = self._then[id(parameter)]
        if parameter._version != version or (values is not None and _differ(parameter, values)):
            self._watched.clear()
            warn(BYPASSED)

    def restart(self) -> None:
        """Begin the next step, or let the gradients of this one go."""
        self._looks -= bool(self._looks and self._then)
        self._then.clear()


def _differ(parameter: Tensor, values: Tensor) -> bool:
    is_converted = (values.dtype, values.device) != (parameter.dtype, parameter.device)  # which is refused elsewhere
    return not is_converted and not torch.equal(parameter, values)


def warn_of_outer(wrapped: torch.optim.Optimizer) -> None:
    """Warn if an optimizer, torch's or not, that does more than to pass it on calls the step that updates by `wrapped`.

    Lookahead and its like go on with the parameters that have a gradient, and after the step streamed ones are gone.
    One that only passes calls on has the state of `wrapped`, and its step does not name `.grad`.
    """
    frame = caller()
    # A frame keeps what `f_locals` shows of it until it ends: one of a step ends soon, one of a script may not.
    outer = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
    does_more = getattr(outer, "state", wrapped.state) is not wrapped.state or "grad" in frame.f_code.co_names
    if hasattr(outer, "param_groups") and does_more:
        name = type(outer).__name__
        can_be_inside = hasattr(outer, "_optimizer_step_pre_hooks")
        inside = f"put it inside, distribute(model, {name}(...)), or " if can_be_inside else ""
        warn(
            f"{name} calls step() of what resireduce.distribute(...) returned, after which streamed gradients are gone"
            f": if it then asks which parameters have a .grad, it leaves out all; {inside}give gradients='kept'"
        )
