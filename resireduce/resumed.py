"""Checkpoints of the wrapped optimizer: a warning if its state was loaded and residuals were not."""

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.errors import warn
from resireduce.residuals.base import Residual

FORGOTTEN = (
    "the optimizer goes on from a state that it was given, but not the residuals: they are zeros, or left by steps "
    "that this state does not know. Save residual_state_dict() of every rank beside it, and load it by "
    "load_residual_state_dict(...), or by resireduce.redistribute(...) on another number of ranks. If that state is of "
    "training without compression, call start_at(0), and nothing is missing"
)


class Resumed:
    """Remembers what was loaded since the last step of `optimizer`: its state, or residuals.

    parameters: those whose state shows whether the optimizer has taken steps before; None: all.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Collection[Tensor] | None = None):
        state = getattr(optimizer, "state", {})
        own = state if parameters is None else {one: state[one] for one in parameters if one in state}
        self._optimizer, self._residuals = has_stepped(own), False
        self._has_stepped = False
        self._end: Callable[[], object] = bool  # does nothing
        if hasattr(optimizer, "_optimizer_load_state_dict_pre_hooks"):  # an optimizer of another library may lack it
            self._watch(optimizer)

    def _watch(self, optimizer: torch.optim.Optimizer) -> None:
        own = weakref.ref(self)

        def note(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
            if (here := own()) is not None:
                here._note(optimizer, state_dict)

        self._end = weakref.finalize(self, optimizer.register_load_state_dict_pre_hook(note).remove)

    def _note(self, optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
        """Note that `state_dict` is loaded, unless it comes from before the first step, or holds the optimizer's own
        tensors.

        Before the first step its own tensors count too: torch.distributed.checkpoint may have loaded values into them.
        """
        given = state_dict.get("state") or {}
        if self._has_stepped and given and _places(given) <= _places(optimizer.state):
            return
        self._optimizer |= not _is_of_no_steps(given) or self._has_stepped

    def residuals(self) -> None:
        """Note that residuals were loaded, or that a step was named at which to continue."""
        self._residuals = True

    def warn(self, residual: Residual) -> None:
        """At a step: warn if the optimizer's state was loaded, and `residual`, if it has tensors, was not."""
        if self.has_forgotten() and residual.tensors():
            warn(FORGOTTEN)

    def has_forgotten(self) -> bool:
        """At a step: whether the optimizer's state was loaded since the last one, and no residuals were."""
        forgotten = self._optimizer and not self._residuals
        self._optimizer, self._residuals, self._has_stepped = False, False, True
        return forgotten

    def end(self) -> None:
        """Stop watching what is loaded."""
        self._end()


def has_stepped(state: Mapping[Any, Any]) -> bool:
    """Whether an optimizer's `state` comes from steps that it has taken, as far as its tensors show."""
    return bool(_places(state)) and not _is_of_no_steps(state)


def only_makes_state(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether a step of `optimizer` would only fill its empty state: learning rates and the gradients of `parameters`
    are zeros. torch.distributed.checkpoint takes such a step, perhaps on one rank alone, before it loads a state."""
    if optimizer.state:
        return False
    rates = [group.get("lr") for group in optimizer.param_groups]
    if not all(isinstance(rate, int | float | Tensor) and bool((torch.as_tensor(rate) == 0).all()) for rate in rates):
        return False
    gradients = [parameter.grad for parameter in parameters]
    return all(
        g is not None and g.layout == torch.strided and g.device.type != "meta" and not g.any() for g in gradients
    )


def _places(state: Mapping[Any, Any]) -> set[int]:
    """Return where the tensors of an optimizer's `state` lie."""
    held = [one for values in state.values() if isinstance(values, Mapping) for one in values.values()]
    return {one.data_ptr() for one in held if isinstance(one, Tensor) and one.numel() and not one.is_meta}


def _is_of_no_steps(state: Mapping[Any, Any]) -> bool:
    """Whether an optimizer's `state` is as before its first step (Adagrad's is not empty), or as after a step with
    gradients of zeros, which torch.distributed.checkpoint takes."""
    return all(isinstance(values, Mapping) and _is_unused(values) for values in state.values())


def _is_unused(values: Mapping[Any, Any]) -> bool:
    """Whether what an optimizer holds for one parameter counts no step, or is zeros apart from that count."""
    step, *others = (values.get("step"), *(one for key, one in values.items() if key != "step"))
    tensors = [one for one in others if isinstance(one, Tensor)]
    counts = isinstance(step, int | float | Tensor)
    return (counts and not _has_values(torch.as_tensor(step))) or (bool(tensors) and not any(map(_has_values, tensors)))


def _has_values(tensor: Tensor) -> bool:
    """Whether a tensor, or this rank's shard of it, has elements other than zeros; True if that cannot be seen."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.is_meta or is_traceable_wrapper_subclass(local) or bool(local.any())
