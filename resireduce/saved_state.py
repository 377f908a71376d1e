"""Checks of the residual state that one rank has saved, before it is loaded."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from resireduce.errors import ConfigError
from resireduce.kernels.norms import is_finite

RANKS_PER_NODE = "ranks_per_node"
"""A key that a state has only if its residuals are slices, with two levels."""
MADE_BY, MEMBERS, PLACES = "made_by", "members.", "places."
"""Keys of a state's origin, which states of earlier versions lack: the compressor whose memory it holds; digests of the
members of each group, named for the first; digests of how the places of each tensor that is stored in part were
drawn."""
PART = 1 << 20
"""Elements of 8 bits that are widened at once, to be looked at."""
LONGEST = 128
"""Bytes that are kept of the text in MADE_BY: torch.distributed.checkpoint loads tensors of one size only."""


def origin(memory: str, meaning: Mapping[str, str]) -> dict[str, Tensor]:
    """Return what tells a saved state from others: whose `memory` it holds, if any, and digests of each `meaning`."""
    digests = {name: hashlib.sha256(text.encode()).digest()[:7] for name, text in meaning.items()}
    found = {name: torch.tensor(int.from_bytes(digest), device="cpu") for name, digest in digests.items()}
    text = bytearray(memory.encode()[:LONGEST].ljust(LONGEST))
    return found | ({MADE_BY: torch.frombuffer(text, dtype=torch.uint8)} if memory else {})


def check_state(held: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless `state` has the tensors that `held` has, with finite values."""
    if not isinstance(state, Mapping):
        raise ConfigError(f"residual state: it is of type {type(state).__name__}; give what residual_state_dict() made")
    wrong = sorted(name for name in held.keys() ^ state.keys() if not _is_of_origin(name))
    wrong = wrong or sorted(name for name in held.keys() & state.keys() if not _alike(held[name], state[name]))
    if wrong:
        raise ConfigError(
            f"residual state: {wrong[0]!r} does not fit this model, scheme, compressor and residual_dtype; load what "
            "they saved"
        )
    _check_origin(held, state)
    bad = next((name for name, tensor in state.items() if not _is_sound(tensor)), None)
    if bad is not None:
        raise ConfigError(f"residual state: {bad!r} holds NaN, infinity or a number that cannot be; load another")


def _is_of_origin(name: str) -> bool:
    return name == MADE_BY or name.startswith((MEMBERS, PLACES))


def _check_origin(held: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if `state` holds another compressor's memory, or residuals of other members or places."""
    common = sorted(name for name in held.keys() & state.keys() if _is_of_origin(name))
    name = next((one for one in common if not torch.equal(held[one], state[one].cpu())), None)
    if name == MADE_BY:
        theirs, ours = (bytes(one[name].tolist()).decode(errors="replace").strip() for one in (state, held))
        raise ConfigError(
            f"residual state: what is remembered of each tensor is that of {theirs}, and this is {ours}; load it with "
            "the compressor that saved it, or call start_at(...) to go on without it"
        )
    if name is not None and name.startswith(MEMBERS):
        raise ConfigError(
            f"residual state: the group of {name.removeprefix(MEMBERS)!r} had other members; load it with the groups "
            "that it was saved with"
        )
    if name is not None:
        raise ConfigError(
            f"residual state: it has other elements of {name.removeprefix(PLACES)!r}, drawn on another type of device; "
            "load it on that which it was saved on"
        )


def check_place(held: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless `state` was saved by the rank that holds `held`, in a job of the same size.

    With two levels, node and place within the node must be the same too.
    """
    if not isinstance(state, Mapping) or not {"rank", "world_size"} <= state.keys():
        return  # it is no residual state, which `check_state` will say
    theirs, ours = (place_in_words(one) for one in (state, held))
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


def place_in_words(state: Mapping[str, Tensor]) -> str:
    """Return in words which rank has saved a state."""
    place = {key: int(state[key]) for key in ("rank", "world_size", "place", RANKS_PER_NODE, "node") if key in state}
    within = f" (number {place['place']} of {place[RANKS_PER_NODE]} in node {place['node']})" if "node" in place else ""
    return f"rank {place['rank']} of {place['world_size']}{within}"


def _alike(first: Tensor, second: object) -> bool:
    return isinstance(second, Tensor) and (first.shape, first.dtype) == (second.shape, second.dtype)


def _is_sound(tensor: Tensor) -> bool:
    """Whether the values are possible: floating-point numbers are finite, integers are counts or indices."""
    if tensor.is_floating_point():
        # Of 8 bits there are no sums. Nothing as large as the tensor is made: memory may be short.
        parts = (one.float() for one in tensor.flatten().split(PART)) if tensor.element_size() == 1 else [tensor]
        return all(map(is_finite, parts))
    if tensor.dtype == torch.int32 and not bool((tensor.diff() > 0).all()):  # numbers of rows and columns
        return False
    return tensor.dtype == torch.int8 or not bool((tensor < 0).any())
