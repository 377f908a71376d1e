"""The node of autograd's graphs that adds gradients to a parameter's `.grad`."""

from typing import Any

import torch
from torch import Tensor


def accumulation_node(parameter: Tensor) -> Any:
    """Return the node that all graphs of `parameter` share, which `torch.autograd.grad` does not pass.

    torch forgets it, and its hooks, when nobody holds it; it makes another when dtype or device change.
    """
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
