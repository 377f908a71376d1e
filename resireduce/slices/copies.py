"""Copies of layers that have a `forward` of their own: they have that of their class, and use their own weight.

A bound method in the `__dict__` of a layer is the same object in a shallow copy, and still bound to the first layer.
"""

import copyreg
from typing import Any

from torch import nn

from resireduce.slices.layers import forms


def without_own_forward(kind: type[nn.Module]) -> None:
    """From now on, leave a `forward` that makes gradients row by row out of copies and pickles of layers of `kind`.

    By the table that `copy` and `pickle` ask for a class, for the whole process; other layers are copied as ever.
    """
    if kind not in copyreg.dispatch_table:
        copyreg.pickle(kind, _reduced)


def _reduced(layer: nn.Module) -> Any:
    """Return what copies and pickles of `layer` are made of."""
    reduced: Any = layer.__reduce_ex__(2)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    function, arguments, state, *rest = reduced
    if getattr(state.get("forward"), "__func__", None) in forms().values():
        state = {key: value for key, value in state.items() if key != "forward"}
    return function, arguments, state, *rest
