"""Parameters whose gradients the library averages, but that another optimizer updates before it does."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.errors import warn
from resireduce.left_out import FIRST_LOOKS, differ
from resireduce.orphaned import objects

BYPASSED = (
    "parameters have changed after a backward pass, but not by step() of what resireduce.distribute(...) returned"
    ": another optimizer updates them by the gradients of this rank alone, so that ranks differ. Call the step() of "
    "that one, or distribute the other; if you change them yourself, alike on all ranks, nothing is wrong"
)
BYPASS_WATCHED = 4
"""How many parameters are watched: the smallest ones."""


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
    return parameter._version != version or (values is not None and differ(parameter, values))
