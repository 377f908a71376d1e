"""Resuming from a checkpoint of another number of ranks: their residuals are redistributed."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from resireduce.comm.nodes import NodeSlices
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.core.slot import Slot
from resireduce.errors import ConfigError
from resireduce.saved_state import RANKS_PER_NODE, check_state, place_in_words
from resireduce.wrappers.comm_hook import CompressionHook
from resireduce.wrappers.fsdp_hook import ShardedCompressionHook

State = Mapping[str, Tensor]
PLACE = ("rank", "world_size", "node", "place", RANKS_PER_NODE)

Holder = DistributedOptimizer | CompressionHook | ShardedCompressionHook
"""Objects that hold residuals."""


@torch.no_grad()
def redistribute(optimizer: Holder, states: Sequence[State]) -> None:
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
    if not isinstance(optimizer, Holder):
        raise ConfigError(f"optimizer: a {type(optimizer).__name__} is not allowed; give what distribute() made")
    if not isinstance(states, Sequence):
        raise ConfigError(f"states: a {type(states).__name__} is not allowed; give a list, one state for each rank")
    if isinstance(optimizer, ShardedCompressionHook):
        states = optimizer.of_this_shard(states)
    held, feedback = optimizer.residual_state_dict(), optimizer.feedback
    number, count = feedback.communicator.rank, feedback.communicator.world_size
    nodes = _by_node(held, states)
    readers = [_reader(optimizer, state) for state in nodes[0]]
    levels = len(nodes), len(readers)
    if feedback.compressor.state_of_ranks and levels != (count, feedback.place.get(RANKS_PER_NODE, 1)):
        nodes = [[{**s, **reader.states.tensors()} for reader, s in zip(readers, n, strict=True)] for n in nodes]
    for node in nodes:
        for reader, state in zip(readers, node, strict=True):
            check_state(reader.state_dict(0), state)
    mine = {i: share for i in range(len(nodes)) if (share := _share(i, number, len(nodes), count))}
    first = nodes[min(mine)][min(feedback.place.get("place", 0), len(readers) - 1)]
    check_state(feedback.states.tensors(), {name: first.get(name) for name in feedback.states.tensors()})  # type: ignore[misc]
    left, velocities = _left_over(optimizer, readers, nodes, mine)
    _put(optimizer, left, velocities, int(first["steps"]))
    feedback.states.load(first)
    optimizer.start_at(int(first["steps"]))


def _put(
    optimizer: Holder,
    left: Mapping[str, Tensor],
    velocities: Mapping[str, Tensor],
    step: int,
) -> None:
    """Store what is `left` of each tensor as this rank's residuals, and its velocities."""
    feedback = optimizer.feedback
    for tensor in feedback.residual.tensors().values():
        tensor.zero_()
    for name, dense in left.items():
        feedback.keep(dense, name, step)
    feedback.residual.end_step(step)
    for name, velocity in ({} if feedback.momentum is None else feedback.momentum.tensors()).items():
        velocity.copy_(velocities[name])


def _by_node(held: State, states: Sequence[State]) -> list[list[State]]:
    """Return the states of each node, ordered by place, all of one job and step; with one level, a rank is a node.
    `held`: what a state of this model looks like."""
    for state in states:
        if not isinstance(state, Mapping) or not {"rank", "world_size", "steps"} <= state.keys():
            check_state(held, state)
    ordered = sorted(states, key=lambda state: (int(state.get("node", state["rank"])), int(state.get("place", 0))))
    kinds = {(int(one["world_size"]), int(one["steps"]), int(one.get(RANKS_PER_NODE, 1))) for one in ordered}
    ranks = sorted(int(state["rank"]) for state in ordered)
    if len(kinds) != 1 or ranks != list(range(next(iter(kinds))[0])):
        given = [f"{place_in_words(state)} at step {int(state['steps'])}" for state in ordered]
        raise ConfigError(
            f"states: those of {', '.join(given) or 'no rank'} are not all of one job at one step; give what each of "
            "its ranks saved in the same step"
        )
    size = kinds.pop()[2]
    return [ordered[first : first + size] for first in range(0, len(ordered), size)]


def _share(source: int, rank: int, sources: int, world_size: int) -> float:
    """Return the factor by which rank `rank` of `world_size` gets the residual of rank `source` of `sources`."""
    if source % world_size != rank % sources:
        return 0.0
    heirs = len(range(source % world_size, world_size, sources))
    return world_size / sources / heirs


def _reader(optimizer: Holder, state: State) -> ErrorFeedback:
    """Return a pipeline that can load `state`, for the rank that saved it."""
    reader = optimizer.feedback.reader({key: int(state[key]) for key in PLACE if key in state})
    for slot in optimizer.slots:
        reader.register(slot.name, _like(slot, int(state.get("place", 0)), int(state.get(RANKS_PER_NODE, 1))))
    return reader


def _like(slot: Slot, place: int, count: int) -> Tensor:
    """Return an empty tensor like the slice that the rank at `place` of `count` has of the parameter of `slot`."""
    if count == 1:
        return slot.parameter
    return slot.parameter.detach().new_zeros(()).expand(NodeSlices(slot.parameter.shape, count).shape_of(place))


def _left_over(
    optimizer: Holder,
    readers: Sequence[ErrorFeedback],
    nodes: Sequence[Sequence[State]],
    shares: Mapping[int, float],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return this rank's part of residuals, dense, and of velocities, summed over the nodes that it has `shares` of."""
    left: dict[str, Tensor] = {}
    velocities: dict[str, Tensor] = {}
    for source, share in shares.items():
        for reader, state in zip(readers, nodes[source], strict=True):
            reader.place = {key: int(state[key]) for key in PLACE if key in state}
            reader.load_state_dict(state)
        for slot in optimizer.slots:
            key = f"momentum.{slot.name}"
            if optimizer.feedback.keeps_residual(slot.name):
                parts = [reader.residual.compensate_(_zeros(slot, reader), slot.name) for reader in readers]
                _add(left, slot.name, _own(slot, parts) * share)
            if optimizer.feedback.momentum is not None:
                parts = [reader.momentum.tensors()[key] for reader in readers if reader.momentum is not None]
                _add(velocities, key, _own(slot, parts) * share)
    return left, velocities


def _add(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    sums[name] = value if name not in sums else sums[name].add_(value)


def _zeros(slot: Slot, reader: ErrorFeedback) -> Tensor:
    like = _like(slot, reader.place.get("place", 0), reader.place.get(RANKS_PER_NODE, 1))
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


def _own(slot: Slot, parts: Sequence[Tensor]) -> Tensor:
    """Return this rank's slice of the tensor whose slices are `parts`."""
    whole = parts[0]
    if len(parts) > 1:
        cut = NodeSlices(slot.parameter.shape, len(parts))
        whole = cut.joined(torch.stack([cut.padded(part) for part in parts]))
    if slot.slices is None:
        return whole
    return slot.slices.own(slot.slices.spread(whole.contiguous())[slot.place], slot.place)
