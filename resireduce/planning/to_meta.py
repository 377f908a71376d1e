"""A model that was built where tensors have values is planned as one that was built on device meta."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

PLAIN = (nn.Parameter, Tensor)
"""Types of what is put into another device; what wraps others, as quantized weights do, stays where it is."""


def to_meta(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with all parameters and buffers on device meta; `model` itself if they all are there.

    The fullest moment of a step is counted by what is made in it, and code for tensors with values makes other things.
    A script's own model is left as it is, unless it cannot be copied: then its tensors are replaced.
    """
    made = {id(one): _like(one) for _, _, one in _held(model)}
    if not made:
        return model
    try:
        return copy.deepcopy(model, dict(made))
    except Exception:  # as of a module with a tensor that was computed, or with a lock
        for held, name, one in list(_held(model)):
            held[name] = made[id(one)]
        return model


def _held(model: nn.Module) -> Iterator[tuple[dict[str, Tensor | None], str, Tensor]]:
    """Yield the parameters and buffers of `model` that have values, each after its dictionary and name there."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for held in (module._parameters, module._buffers):
            for name, one in held.items():
                if one is not None and type(one) in PLAIN and one.layout == torch.strided and not one.is_meta:
                    yield held, name, one  # type: ignore[misc]


def _like(one: Tensor) -> Tensor:
    """Return a tensor like `one`, with its attributes, on device meta."""
    empty = torch.empty_like(one, device="meta").detach()
    if isinstance(one, nn.Parameter):
        empty = nn.Parameter(empty, one.requires_grad)
        vars(empty).update(vars(one))
    return empty
