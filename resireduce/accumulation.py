"""The node of autograd's graphs that adds gradients to a parameter's `.grad`."""

from typing import Any

import torch
from torch import Tensor


def accumulation_node(parameter: Tensor) -> Any:
    """Return the node by which all graphs of `parameter` add to `.grad`; `torch.autograd.grad` does not run it.

    torch frees it, with its hooks, when nothing holds it, and makes another one when dtype or device change.
    """
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
