"""A model that was built where tensors have values is planned as one that was built on device meta."""

import torch
from torch import Tensor, nn

PLAIN = (nn.Parameter, Tensor)
"""Types of what is put into another device; what wraps others, as quantized weights do, stays where it is."""


def to_meta(model: nn.Module) -> None:
    """Put tensors on device meta in the place of all parameters and buffers of `model`; what is tied stays so.

    The fullest moment of a step is counted by what is made in it, and code for tensors with values makes other things.
    """
    made: dict[int, Tensor] = {}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for held in (module._parameters, module._buffers):
            for name, one in held.items():
                if one is not None and type(one) in PLAIN and one.layout == torch.strided and not one.is_meta:
                    held[name] = made.setdefault(id(one), _like(one))  # type: ignore[assignment]


def _like(one: Tensor) -> Tensor:
    """Return a tensor like `one`, with its attributes, on device meta."""
    empty = torch.empty_like(one, device="meta").detach()
    if isinstance(one, nn.Parameter):
        empty = nn.Parameter(empty, one.requires_grad)
        vars(empty).update(vars(one))
    return empty
