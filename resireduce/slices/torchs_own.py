"""Which layer is called, and whether it computes what torch's own does: only then is its gradient our formula's."""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

_HOMES = ("torch.nn.", "transformers.pytorch_utils")
"""Modules whose functions a layer may have. A wrapper of one has the globals of the module that it is written in."""
_CALLS = nn.Module.__call__.__code__.co_filename
"""The file of torch whose functions call the forward of a module."""


def is_torchs_own(layer: nn.Module) -> bool:
    """Whether the forward pass of `layer` calls torch's own functions, and none has been replaced.

    LoRA and quantisation do so in a layer, in its class or in torch.nn.functional, or by a mode of torch's functions.
    """
    if functional.linear is not torch._C._nn.linear or functional.conv2d is not torch.conv2d:
        return False
    kind = type(layer)
    convolution = vars(layer).get("_conv_forward", getattr(kind, "_conv_forward", kind.forward))
    functions = (kind.forward, convolution, functional.embedding)
    if not all(getattr(one, "__globals__", {}).get("__name__", "").startswith(_HOMES) for one in functions):
        return False
    modes = _get_current_function_mode_stack() if torch._C._len_torch_function_stack() else ()
    return all(type(mode) is DeviceContext for mode in modes)  # which only says where tensors are made


def called_layer(layer: Any) -> Any:
    """Return the layer whose call has come to the forward of `layer`, as the first thing that forward does: `layer`, or
    one that was given a copy of its `__dict__`.

    Whoever copies all attributes (`nn.DataParallel`, meta-learning with higher or learn2learn) copies the bound method
    too, which knows only the first layer. The caller of that method has the copy as its `self`.
    """
    if torch.compiler.is_compiling():
        return layer
    frame = sys._getframe(2)
    if frame.f_code.co_filename != _CALLS:  # that of a script would keep what `f_locals` shows of it until it ends
        return layer
    caller = frame.f_locals.get("self")
    own = vars(caller).get("forward") if isinstance(caller, nn.Module) else None
    return caller if getattr(own, "__self__", None) is layer else layer


def other_option(layer: nn.Module) -> str | None:
    """Return the options of `layer`, as they are now, for which our formula does not hold; None if there are none."""
    options = ("max_norm", "scale_grad_by_freq", "sparse") if isinstance(layer, nn.Embedding) else ()
    if any(getattr(layer, option) for option in options):
        return "max_norm, scale_grad_by_freq or sparse"
    if isinstance(layer, nn.Conv2d) and (
        layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros"
    ):
        return "groups, or padding that is not of zeros and given as numbers"
    return None
