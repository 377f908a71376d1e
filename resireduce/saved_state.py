"""Checks of the residual state that one rank has saved, before it is loaded."""

from collections.abc import Mapping

import torch
from torch import Tensor

from resireduce.errors import ConfigError

RANKS_PER_NODE = "ranks_per_node"
"""What a state has only if its residuals are slices."""


def check_state(held: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless `state` is what `held` looks like: the same tensors, and finite."""
    if not isinstance(state, Mapping):
        raise ConfigError(f"residual state: it is of type {type(state).__name__}; give what residual_state_dict() made")
    wrong = sorted(held.keys() ^ state.keys()) or sorted(name for name in held if not _alike(held[name], state[name]))
    if wrong:
        raise ConfigError(
            f"residual state: {wrong[0]!r} does not fit this model, scheme, compressor and residual_dtype; load what "
            "they saved"
        )
    bad = next((name for name, tensor in state.items() if not _is_sound(tensor)), None)
    if bad is not None:
        raise ConfigError(f"residual state: {bad!r} holds NaN, infinity or a number that cannot be; load another")


def check_place(held: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless `state` was saved by the rank that holds `held`, in a job of the same size.

    Of two levels, also if that was at another place, or in another node.
    """
    if not isinstance(state, Mapping) or not {"rank", "world_size"} <= state.keys():
        return  # it is no such state at all, as `check_state` says
    theirs, ours = (told_place(one) for one in (state, held))
    if theirs != ours:
        raise ConfigError(
            f"residual state: it is that of {theirs}, this is {ours}; load this rank's own, or give those of all ranks "
            "to resireduce.redistribute(optimizer, states)"
        )


def check_levels(held: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless `state` and `held` are of as many ranks a node: of slices of the same shapes."""
    if not isinstance(state, Mapping):
        return
    theirs, ours = (int(one.get(RANKS_PER_NODE, 1)) for one in (state, held))
    if theirs != ours:
        raise ConfigError(
            f"residual state: it was saved with {theirs} ranks a node, and here are {ours} (1: hierarchy='flat', whole "
            "residuals); load it with the hierarchy that it was saved with, or give the states of all ranks to "
            "resireduce.redistribute(optimizer, states)"
        )


def told_place(state: Mapping[str, Tensor]) -> str:
    """Return which rank a state is of, in words."""
    place = {key: int(state[key]) for key in ("rank", "world_size", "place", RANKS_PER_NODE, "node") if key in state}
    within = f" (number {place['place']} of {place[RANKS_PER_NODE]} in node {place['node']})" if "node" in place else ""
    return f"rank {place['rank']} of {place['world_size']}{within}"


def _alike(first: Tensor, second: object) -> bool:
    return isinstance(second, Tensor) and (first.shape, first.dtype) == (second.shape, second.dtype)


def _is_sound(tensor: Tensor) -> bool:
    """Whether the values can be: floating-point numbers are finite, the others count or number something."""
    if tensor.is_floating_point():
        wide = tensor.float() if tensor.element_size() == 1 else tensor  # of 8 bits there is no isfinite
        return bool(wide.isfinite().all())
    if tensor.dtype == torch.int32 and not bool((tensor.diff() > 0).all()):  # numbers of rows and columns
        return False
    return tensor.dtype == torch.int8 or not bool((tensor < 0).any())
