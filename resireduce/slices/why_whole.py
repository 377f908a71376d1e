"""Why the gradient of a weight must be made whole, and not row by row: reasons in words, for the user."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from resireduce.error_feedback import ErrorFeedback
from resireduce.slices.layers import forms
from resireduce.slices.torchs_own import is_torchs_own, other_option
from resireduce.step.slot import Slot

Holders = Sequence[tuple[nn.Module, str]]
"""The modules that hold a parameter, each with its name for it."""


def why_whole(slot: Slot, holders: Holders, feedback: ErrorFeedback, passes: int) -> str | None:
    """Return why the gradient of `slot`, whose parameter `holders` hold, must be whole; None: it need not be.

    feedback: knows whether the residual absorbs it, or else takes parts of it. passes: backward passes of a step.
    """
    if not feedback.keeps_residual(slot.name):
        return "it is sent without compression"
    if feedback.momentum is not None:
        return "the compressor corrects momentum, with the whole gradient"
    if not feedback.residual.absorbs(slot.name) and (reason := _why_not_twice(slot, feedback, passes)):
        return f"only a full residual, in the gradient's dtype of 32 bits, absorbs it row by row; and {reason}"
    if type(slot.parameter) is not nn.Parameter:
        return f"it is a {type(slot.parameter).__name__} and no plain nn.Parameter, which may compute in its own way"
    if slot.parameter._backward_hooks or len(slot.parameter._post_accumulate_grad_hooks or {}) > 1:
        return "a hook is registered for it"
    return next((reason for module, key in holders if (reason := _why_not(module, key))), None)


def _why_not_twice(slot: Slot, feedback: ErrorFeedback, passes: int) -> str | None:
    """Return why the gradient of `slot` cannot be made twice, row by row, for a residual that does not absorb it."""
    if not feedback.residual.takes_parts(slot.name):
        return "its residual cannot be read and written some rows at a time, as one in a floating-point dtype can"
    if not feedback.compressor.selects_from_parts(slot.parameter):
        return f"{type(feedback.compressor).__name__} selects from the whole gradient, where topk can do without"
    if not slot.parameter.is_contiguous():
        return "the rows of the weight do not lie one after the other in memory: give it weight.contiguous()"
    if passes > 1:
        return "gradients of several passes are added up before they are compressed"
    return None


def _why_not(module: nn.Module, key: str) -> str | None:
    """Return why the gradient of the parameter `key` of `module` cannot be made row by row; None if it can."""
    kind, own = type(module), vars(module).get("forward")
    form, name = row_forward(module), type(module).__name__
    if form is None or key != "weight":
        return (
            f"{name}.{key} is no weight of nn.Linear, nn.Embedding or nn.Conv2d, or transformers' Conv1D, with their "
            "own forward"
        )
    if own is not None and getattr(own, "__func__", None) not in (kind.forward, form):
        return f"a forward has been put into its {name}"
    options = other_option(module)
    return None if options is None else f"its {name} has {options}"


def row_forward(module: nn.Module) -> Any:
    """Return the forward that makes gradients row by row, for a `module` with torch's own forward; otherwise None.

    The forward of `nn.MultiheadAttention.out_proj` is never called: attention uses its weight directly.
    """
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return None
    for kind, form in forms().items():
        if isinstance(module, kind):
            return form if type(module).forward is kind.forward and is_torchs_own(module) else None
    return None
