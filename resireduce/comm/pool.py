"""Process groups of torch.distributed: one for each optimizer in use, reused when that is closed.

Each holds sockets and threads until the program ends, so they are not created again for every optimizer. Two optimizers
in use never share one: their collectives would be confused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass
class Pooled:
    """A process group, and whether an optimizer of this rank uses it."""

    group: dist.ProcessGroup
    launched: int = 0
    """Collectives that this rank has launched in it, counted by the code that launches them."""
    free: bool = False
    """Whether no optimizer of this rank uses it."""


_Key = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
_pools: dict[_Key, list[Pooled]] = {}  # by ranks and how they are divided, in the order in which all have made them
_world: list[dist.ProcessGroup] = []


def acquire(base: dist.ProcessGroup | None) -> Pooled:
    """Return a group of the ranks of `base` (None: all) that no optimizer uses. All these ranks call it together."""
    world = dist.group.WORLD
    assert world is not None
    if _world != [world]:  # torch.distributed was started again: groups of before are gone
        _pools.clear()
        _world[:] = [world]
    over = world if base is None else base
    ranks = tuple(dist.get_process_group_ranks(over))
    return _acquire((ranks, ()), over, lambda: _new_group(base, ranks))


def acquire_part(over: dist.ProcessGroup, parts: tuple[tuple[int, ...], ...]) -> Pooled:
    """Return a group that no optimizer uses, of the one of `parts` of the ranks of `over` that this rank is in.

    All ranks of `over` must call it together; `parts` contain each rank once, numbered as in the whole job.
    """
    own = next(part for part in parts if dist.get_rank() in part)
    return _acquire((tuple(dist.get_process_group_ranks(over)), parts), over, lambda: _new_group(over, own))


def _acquire(key: _Key, over: dist.ProcessGroup, make: Callable[[], dist.ProcessGroup]) -> Pooled:
    pool = _pools.setdefault(key, [])
    found = _free_everywhere(pool, over)
    if found is None:
        pool.append(found := Pooled(make()))
    found.free = False
    return found


def release(pooled: Pooled) -> None:
    """Let the group `pooled` be acquired again, once all its ranks have released it."""
    pooled.free = True


def _free_everywhere(pool: list[Pooled], over: dist.ProcessGroup) -> Pooled | None:
    """Return a group that all ranks of `over` have released after equally many collectives: one rank may have lost an
    optimizer that another still has, or may have lost it in the middle of a step."""
    if not pool:
        return None
    device = "cuda" if dist.get_backend(over) == "nccl" else "cpu"
    mine = torch.tensor([one.launched if one.free else -1 for one in pool], device=device)
    both = torch.stack((mine, -mine))
    dist.all_reduce(both, dist.ReduceOp.MIN, group=over)
    fewest, most = both[0].tolist(), (-both[1]).tolist()
    agreed = (one for one, low, high in zip(pool, fewest, most, strict=True) if 0 <= low == high)
    return next(agreed, None)


def _new_group(base: dist.ProcessGroup | None, ranks: tuple[int, ...]) -> dist.ProcessGroup:
    if base is None:
        return dist.new_group(timeout=_timeout(_world[0]))
    backend = dist.get_backend(base)
    return dist.new_group(list(ranks), timeout=_timeout(base), backend=backend, use_local_synchronization=True)


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """Return the time limit of `group`, as set by the user; None (torch's default) if this torch does not tell it."""
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    try:
        return group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return None
