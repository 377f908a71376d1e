"""Residual states: checked before they are loaded, and redistributed among another number of ranks."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resireduce.comm.nodes import NodeSlices
from resireduce.errors import ConfigError
from resireduce.kernels.ops import is_finite

if TYPE_CHECKING:
    from resireduce.core.bucket import Slot
    from resireduce.core.feedback import ErrorFeedback
    from resireduce.core.optimizer import Resumable

State = Mapping[str, Tensor]
RANKS_PER_NODE = "ranks_per_node"
"""A key that a state has only if its residuals are slices, with two levels."""
SHARD = ("shard_rank", "shard_world_size")
"""Keys that a state has only if its residuals are slices of a model under `fully_shard`: which shard, of how many."""
PLACE = ("rank", "world_size", "node", "place", RANKS_PER_NODE, *SHARD)
MADE_BY, MEMBERS, PLACES = "made_by", "members.", "places."
"""Keys of a state's origin, which states of earlier versions lack: the compressor whose memory it holds; digests of the
members of each group, named for the first; digests of how the places of each tensor that is stored in part were
drawn."""


def origin(memory: str, meaning: Mapping[str, str]) -> dict[str, Tensor]:
    """Return what tells a saved state from others: whose `memory` it holds, if any, and digests of each `meaning`."""
    digests = {name: hashlib.sha256(text.encode()).digest()[:7] for name, text in meaning.items()}
    found = {name: torch.tensor(int.from_bytes(digest), device="cpu") for name, digest in digests.items()}
    text = bytearray(memory.encode()[:128].ljust(128))  # torch.distributed.checkpoint loads tensors of one size only
    return found | ({MADE_BY: torch.frombuffer(text, dtype=torch.uint8)} if memory else {})


def check_place(held: State, state: State) -> None:
    """Raise ConfigError unless `state` was saved by the rank that holds `held`, in a job of as many ranks and nodes."""
    if {"rank", "world_size"} <= state.keys() and (theirs := _in_words(state)) != (ours := _in_words(held)):
        raise ConfigError(
            f"residual state: it is that of {theirs}, this is {ours}; load this rank's own, or give those of all ranks "
            "to resireduce.redistribute(optimizer, states)"
        )


def check_state(held: State, state: State) -> None:
    """Raise ConfigError unless `state` has the tensors that `held` has, of the same origin, with finite values."""
    common = sorted(held.keys() & state.keys())
    wrong = sorted(name for name in held.keys() ^ state.keys() if not _is_of_origin(name))
    for name in wrong or [name for name in common if _kind(held[name]) != _kind(state[name])]:
        raise ConfigError(f"residual state: {name!r} does not fit this model, scheme, compressor and residual_dtype")
    for name in common:
        if _is_of_origin(name) and not torch.equal(held[name], state[name].cpu()):
            raise ConfigError(
                f"residual state: {name!r} is another one here: what it remembers is that of another compressor "
                f"({MADE_BY}), a group had other members ({MEMBERS}), or elements were drawn on another type of device "
                f"({PLACES}); load it with what it was saved with, or call start_at(...) to go on without it"
            )
    for name in (name for name, tensor in state.items() if not _is_sound(tensor)):
        raise ConfigError(f"residual state: {name!r} holds NaN, infinity or a number that cannot be; load another")


def _is_of_origin(name: str) -> bool:
    return name == MADE_BY or name.startswith((MEMBERS, PLACES))


def _kind(one: object) -> object:
    return (one.shape, one.dtype) if isinstance(one, Tensor) else None


def _is_sound(tensor: Tensor) -> bool:
    """Whether the values are possible: floating-point numbers are finite, integers are counts or indices."""
    if tensor.is_floating_point():
        # Of 8 bits there are no sums. Nothing as large as the tensor is made: memory may be short.
        parts = (one.float() for one in tensor.flatten().split(1 << 20)) if tensor.element_size() == 1 else [tensor]
        return all(map(is_finite, parts))
    are_ascending = tensor.dtype != torch.int32 or bool((tensor.diff() > 0).all())  # numbers of rows and columns
    return are_ascending and (tensor.dtype == torch.int8 or not bool((tensor < 0).any()))


def _place_of(state: State) -> dict[str, int]:
    return {key: int(state[key]) for key in PLACE if key in state}


def _in_words(state: State) -> str:
    place = _place_of(state)
    within = f" (number {place['place']} of {place[RANKS_PER_NODE]} in node {place['node']})" if "node" in place else ""
    shard = ", shard {} of {}".format(*(place[key] for key in SHARD)) if SHARD[0] in place else ""
    return f"rank {place['rank']} of {place['world_size']}{within}{shard}"


@torch.no_grad()
def redistribute(optimizer: "Resumable", states: Sequence[State]) -> None:
    """Load this rank's share of the residuals that the ranks of a job saved, however many they were.

    It replaces `load_residual_state_dict`. With N saved states and M ranks now, rank j gets the states of the ranks i =
    j modulo M; if M is larger, each state is divided among the ranks j = i modulo N. They are scaled by M / N, so that
    their average over the ranks, by which the model is still to be moved, stays the same up to rounding. With `d` and
    `2d` it does not: where rows and columns of several ranks meet, only those of the largest norms can be stored, as
    after any step. A compressor's state is taken from the first of the ranks whose residuals this rank gets,
    or starts again where it depends on the number of ranks. With hierarchy="node", then or now, nodes take the place of
    ranks: a node's slices are joined, and cut again. During the call two more copies of the model are held.

    Args:
        optimizer: built as for that job, except for the number of ranks; or the hook of `resireduce.compress_ddp`, or
            of `resireduce.compress_fsdp`, whose ranks are replicas: the number of shards must be that of the job.
        states: `residual_state_dict()` of every rank of that job, in any order. All ranks must be given the same.

    Raises ConfigError, before anything is changed, if a state is missing, or is of another model or scheme.
    """
    held, feedback = optimizer.residual_state_dict(), optimizer.feedback
    states = [state for state in states if all(int(state.get(key, -1)) == held.get(key, -1) for key in SHARD)]
    number, count = feedback.communicator.rank, feedback.communicator.world_size
    nodes = _by_node(states)
    readers = [feedback.reader(_place_of(state)) for state in nodes[0]]
    for reader, slot in product(readers, optimizer.slots):
        reader.register(slot.name, _like(slot, reader))
    levels = len(nodes), len(readers)
    if feedback.compressor.state_of_ranks and levels != (count, feedback.place.get(RANKS_PER_NODE, 1)):
        nodes = [[{**s, **reader.states.tensors()} for reader, s in zip(readers, n, strict=True)] for n in nodes]
    for node in nodes:
        for reader, state in zip(readers, node, strict=True):
            check_state(reader.state_dict(0), state)
    mine = [node for i, node in enumerate(nodes) if i % count == number % len(nodes)]
    heirs = len(range(number % len(nodes), count, len(nodes)))  # of each of these
    share = count / len(nodes) / heirs
    first = mine[0][min(feedback.place.get("place", 0), len(readers) - 1)]
    check_state(feedback.states.tensors(), {name: first[name] for name in feedback.states.tensors() if name in first})
    left: dict[str, Tensor] = {}
    velocities: dict[str, Tensor] = {}
    for node in mine:
        for reader, state in zip(readers, node, strict=True):
            reader.place = _place_of(state)
            reader.load_state_dict(state)
        for slot in optimizer.slots:
            name, key = slot.name, f"momentum.{slot.name}"
            if feedback.keeps_residual(name):
                zeros = [torch.zeros_like(_like(slot, one), memory_format=torch.contiguous_format) for one in readers]
                parts = [one.residual.of(name).compensate_(z, name) for one, z in zip(readers, zeros, strict=True)]
                left[name] = _own(slot, parts).mul(share).add_(left.get(name, 0))
            if feedback.compressor.momentum is not None:
                parts = [state[key].to(slot.parameter.device) for state in node]
                velocities[key] = _own(slot, parts).mul(share).add_(velocities.get(key, 0))
    step = int(first["steps"])
    for tensor in feedback.residual.tensors().values():
        tensor.zero_()
    for name, dense in left.items():
        feedback.add_to_residual(dense, name, step)
    feedback.end_step(step)
    for name, tensor in feedback.memory().items():
        tensor.copy_(velocities.get(name, first[name]))
    optimizer.start_at(step)


def _by_node(states: Sequence[State]) -> list[list[State]]:
    """Return the states of each node, ordered by place, all of one job and step; with one level, a rank is a node."""
    if any(not {"rank", "world_size", "steps"} <= state.keys() for state in states):
        raise ConfigError("states: one is no residual_state_dict(); give what each rank of the job saved by that")
    ordered = sorted(states, key=lambda state: (int(state.get("node", state["rank"])), int(state.get("place", 0))))
    kinds = {(int(one["world_size"]), int(one["steps"]), int(one.get(RANKS_PER_NODE, 1))) for one in ordered}
    ranks = sorted(int(state["rank"]) for state in ordered)
    if len(kinds) != 1 or ranks != list(range(next(iter(kinds))[0])):
        given = [f"{_in_words(state)} at step {int(state['steps'])}" for state in ordered]
        raise ConfigError(
            f"states: those of {', '.join(given) or 'no rank'} are not all of one job at one step; give what each of "
            "its ranks saved in the same step (under FSDP2, in as many shards: slices are not cut anew)"
        )
    size = kinds.pop()[2]
    return [ordered[first : first + size] for first in range(0, len(ordered), size)]


def _like(slot: "Slot", reader: "ErrorFeedback") -> Tensor:
    """Return an empty tensor like the slice that the rank of `reader` has of the parameter of `slot`."""
    count = reader.place.get(RANKS_PER_NODE, 1)
    if count == 1:
        return slot.parameter
    shape = NodeSlices(slot.parameter.shape, count).shape_of(reader.place["place"])
    return slot.parameter.detach().new_zeros(()).expand(shape)


def _own(slot: "Slot", parts: Sequence[Tensor]) -> Tensor:
    """Return this rank's slice of the tensor whose slices are `parts`."""
    whole = parts[0]
    if len(parts) > 1:
        cut = NodeSlices(slot.parameter.shape, len(parts))
        whole = cut.joined(torch.stack([cut.padded(part) for part in parts]))
    if slot.slices is None:
        return whole
    return slot.slices.own(slot.slices.spread(whole.contiguous())[slot.place], slot.place)
