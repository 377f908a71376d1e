"""A checkpoint of another number of ranks: what they had not sent is shared out anew."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from resireduce.comm_hook import CompressionHook
from resireduce.errors import ConfigError
from resireduce.fsdp_hook import ShardedCompressionHook
from resireduce.optimizer import DistributedOptimizer
from resireduce.saved_state import check_state

Holder = DistributedOptimizer | CompressionHook | ShardedCompressionHook
"""What holds residuals."""


@torch.no_grad()
def redistribute(optimizer: Holder, states: Sequence[Mapping[str, Tensor]]) -> None:
    """Load, in place of `load_residual_state_dict`, this rank's share of what all ranks of a job of any size saved.

    Of N states, those of ranks i = j modulo M go to rank j of M now; where M is larger, each is divided among the ranks
    j = i modulo N. They are scaled by M / N, so that their average over the ranks, which is what the model would still
    be moved by, stays what it was, but for rounding, in every scheme except `d` and `2d`: where several ranks' rows
    and columns meet, only those of the largest norms can be stored, as after any step. What a compressor remembers of
    tensors is taken from the first of the ranks whose residuals go here. For the time of the call one more copy of the
    model is held.

    Args:
        optimizer: built as for that job, but for the number of ranks; or the hook of `resireduce.compress_ddp`, or of
            `resireduce.compress_fsdp`, whose ranks are replicas: the number of shards must be that of the job.
        states: `residual_state_dict()` of every rank of that job, in any order. All ranks must be given the same.

    Raises ConfigError, before anything is changed, if one is missing, or is of another model or scheme.
    """
    if not isinstance(optimizer, Holder):
        raise ConfigError(f"optimizer: a {type(optimizer).__name__} is not allowed; give what distribute() made")
    if not isinstance(states, Sequence):
        raise ConfigError(f"states: a {type(states).__name__} is not allowed; give a list, one state for each rank")
    if isinstance(optimizer, ShardedCompressionHook):
        states = optimizer.of_this_shard(states)
    held, feedback = optimizer.residual_state_dict(), optimizer.feedback
    for state in states:
        check_state(held, state)
    by_rank = _by_rank(states)
    rank, world_size = feedback.communicator.rank, feedback.communicator.world_size
    mine = {i: share for i in range(len(by_rank)) if (share := _share(i, rank, len(by_rank), world_size))}
    dense = _left_over(optimizer, by_rank, mine)
    residual, step = feedback.residual, int(by_rank[0]["steps"])
    for tensor in residual.tensors().values():
        tensor.zero_()
    for name, left in dense.items():
        feedback.keep(left, name, step)
    residual.end_step(step)
    for name, velocity in ({} if feedback.momentum is None else feedback.momentum.tensors()).items():
        velocity.zero_()
        for source, share in mine.items():
            velocity.add_(by_rank[source][name].to(velocity.device), alpha=share)
    feedback.states.load(by_rank[min(mine)])
    optimizer.start_at(step)


def _by_rank(states: Sequence[Mapping[str, Tensor]]) -> list[Mapping[str, Tensor]]:
    """Return the states in the order of their ranks, all of one job and step."""
    ordered = sorted(states, key=lambda state: int(state["rank"]))
    kinds = {(int(state["world_size"]), int(state["steps"])) for state in ordered}
    if len(kinds) != 1 or [int(state["rank"]) for state in ordered] != list(range(kinds.pop()[0])):
        given = [f"rank {int(s['rank'])} of {int(s['world_size'])} at step {int(s['steps'])}" for s in ordered]
        raise ConfigError(f"states: those of {', '.join(given) or 'no rank'} are not all of one job at one step")
    return ordered


def _share(source: int, rank: int, sources: int, world_size: int) -> float:
    """Return what rank `rank` of `world_size` gets of the residual of rank `source` of `sources`."""
    if source % world_size != rank % sources:
        return 0.0
    heirs = len(range(source % world_size, world_size, sources))
    return world_size / sources / heirs


def _left_over(
    optimizer: Holder,
    states: Sequence[Mapping[str, Tensor]],
    shares: Mapping[int, float],
) -> dict[str, Tensor]:
    """Return the dense residual of each tensor, summed over the ranks that this rank has `shares` of."""
    feedback, dense = optimizer.feedback, dict[str, Tensor]()
    for source, share in shares.items():
        feedback.residual.load(states[source])
        for slot in optimizer.slots:
            if feedback.keeps_residual(slot.name):
                left = feedback.residual.compensate_(torch.zeros_like(slot.parameter), slot.name) * share
                dense[slot.name] = left if slot.name not in dense else dense[slot.name].add_(left)
    return dense
