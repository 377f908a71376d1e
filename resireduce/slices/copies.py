"""Copies of layers whose `forward` the library has replaced: a copy has that of its class again, and uses its own
weight.

A bound method in the `__dict__` of a layer is the same object in a shallow copy, and still bound to the first layer.
"""

import copyreg
from typing import Any

from torch import nn

from resireduce.slices.layers import forms


def without_own_forward(kind: type[nn.Module]) -> None:
    """From now on, leave a `forward` that makes gradients row by row out of copies and pickles of layers of `kind`.

    This registers `kind` in the table of copyreg, for the whole process; layers without such a `forward` are copied as
    before.
    """
    if kind not in copyreg.dispatch_table:
        copyreg.pickle(kind, _reduced)


def _reduced(layer: nn.Module) -> Any:
    """Return what copies and pickles of `layer` are made from, as `__reduce_ex__` returns it."""
    reduced: Any = layer.__reduce_ex__(2)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    function, arguments, state, *rest = reduced
    if getattr(state.get("forward"), "__func__", None) in forms().values():
        state = {key: value for key, value in state.items() if key != "forward"}
    return function, arguments, state, *rest
