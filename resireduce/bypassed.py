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
    "another optimizer has updated them by the gradients of this rank alone, ranks differ: call the step() of that "
    "one, or distribute the other. If ranks are meant to differ until then (local steps with an outer optimizer), or "
    "you change them yourself, alike on all ranks, nothing is wrong"
)
ROUNDING = 8
"""How many times the precision of its dtype a parameter may differ after it was changed and changed back."""
BYPASS_WATCHED = 4
"""How many parameters are watched: the smallest ones."""


class Bypassed:
    """Warns once if parameters change after a backward pass, but not by a step that averages their kept gradients.

    A few small ones are watched: where their version has changed, their values are compared and, in the first passes
    on a CPU, always, as fused optimizers do not tell autograd that they change a parameter. On a GPU the host would
    wait for that. Differences that rounding makes, as where parameters were changed and changed back, do not count.

    Args:
        parameters: those whose gradients are averaged.
        wrapped: the optimizer whose steps average them.
    """

    def __init__(self, parameters: Iterable[Tensor], wrapped: torch.optim.Optimizer):
        plain = [one for one in parameters if not is_traceable_wrapper_subclass(one)]
        self._watched = {id(one) for one in sorted(plain, key=Tensor.numel)[:BYPASS_WATCHED]}
        self._wrapped = wrapped
        self._looks = FIRST_LOOKS
        self._then: dict[int, tuple[Tensor, int | None, Tensor]] = {}

    def note(self, parameter: Tensor) -> None:
        """Look at `parameter`, whose gradient autograd has finished."""
        if id(parameter) not in self._watched:
            return
        if id(parameter) not in self._then:
            version = None if self._looks and parameter.is_cpu else parameter._version
            self._then[id(parameter)] = parameter, version, parameter.detach().clone()
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

    def _look(self, then: tuple[Tensor, int | None, Tensor]) -> None:
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


def _has_changed(then: tuple[Tensor, int | None, Tensor]) -> bool:
    """Whether a parameter has other values than it had, by more than rounding. They are compared only where its version
    is another one, or None is given for it."""
    parameter, version, values = then
    if parameter._version == version or not differ(parameter, values):
        return False
    if not values.is_floating_point() or not values.numel() or values.shape != parameter.shape:
        return True
    rounding = ROUNDING * torch.finfo(values.dtype).eps * values.abs().max()
    return not bool((parameter.detach() - values).abs().max() <= rounding)
