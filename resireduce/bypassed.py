"""Parameters whose gradients the library averages, but that another optimizer updates before it does."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.errors import warn
from resireduce.left_out import FIRST_LOOKS, differ
from resireduce.orphaned import objects

BYPASSED = (
    "parameters have changed after a backward pass, but not by step() of what resireduce.distribute(...) returned. If "
    "another optimizer updates them, it does so by the gradients of this rank alone, and ranks differ: call the step() "
    "of the returned one, or distribute the other. If they are the same on all ranks again when that takes its step, "
    "as after local steps that an outer optimizer averages, or if you change them alike, nothing is wrong"
)
BYPASS_WATCHED = 4
"""How many parameters are watched: the smallest ones."""
MOVED = 2
"""In how many passes since the last step a parameter must be elsewhere: SAM computes one gradient away from it."""
ROUNDING = 1e-5
"""The part of a parameter's largest value by which moving it and back may change it, or a bit of a shorter dtype."""


class Bypassed:
    """Warns once if parameters change after a backward pass, but not by a step that averages their kept gradients.

    A few small ones are watched, by their values in the first steps on a CPU, and then by their version: fused
    optimizers do not tell autograd that they change a parameter, and on a GPU the host would wait for values. Values
    that differ by rounding, as where a parameter is moved and moved back, are the same.

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
        """What the watched ones were at the first gradient since the last step."""
        self._moved: dict[int, int] = {}
        """In how many later passes they were elsewhere."""

    def note(self, parameter: Tensor) -> None:
        """Look at `parameter`, whose gradient autograd has finished."""
        key = id(parameter)
        if key not in self._watched:
            return
        if key not in self._then:
            has_values = self._looks and parameter.is_cpu and parameter.itemsize > 1
            values = parameter.detach().clone() if has_values else None
            self._then[key] = parameter, parameter._version, values
        elif _has_changed(self._then[key]):
            self._moved[key] = self._moved.get(key, 0) + 1
            if self._moved[key] == MOVED:
                self._warn()

    def note_step(self) -> None:
        """Look whether another optimizer has taken a step before this one; parameters may be changed by hand."""
        if any(map(_has_changed, self._then.values())) and self._others_hold():
            self._warn()

    def restart(self) -> None:
        """Begin the next step, as one has been taken."""
        self._looks -= bool(self._looks and self._then)
        self._then.clear()
        self._moved.clear()

    def _warn(self) -> None:
        self._watched.clear()
        warn(BYPASSED)

    def _others_hold(self) -> bool:
        """Whether an optimizer that does not just pass calls on to this one has parameters that are looked at."""
        lists = (getattr(one, "param_groups", []) for one in objects(torch.optim.Optimizer))
        groups = [group for one in lists if one is not self._wrapped.param_groups for group in one]
        return any(id(one) in self._watched for group in groups for one in group["params"])


def _has_changed(then: tuple[Tensor, int, Tensor | None]) -> bool:
    """Whether a parameter has other values than it had, beyond rounding; or another version, where none are known."""
    parameter, version, values = then
    if values is None or not differ(parameter, values):
        return values is None and parameter._version != version
    rounding = max(ROUNDING, torch.finfo(values.dtype).eps) * values.abs().max()
    return bool((parameter.detach() - values).abs().max() > rounding)
