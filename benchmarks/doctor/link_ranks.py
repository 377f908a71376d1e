"""One rank that times links and its device: `python -m benchmarks.doctor.link_ranks MEETING_PLACE RANKS_PER_NODE`."""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.child import report

if TYPE_CHECKING:
    import torch

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 21)
"""Sizes in bytes of each rank's part of a gather."""
ROUNDS, REPEATS = 20, 4
"""Rounds over all sizes, and how often a gather is repeated in each."""
JOIN_SECONDS = 60
SIDE, ELEMENTS = 512, 1 << 23
"""Side of the multiplied matrices, and elements of the copied vector: more than fits into caches."""


def main(meeting_place: str, ranks_per_node: int) -> dict[str, Any]:
    """Return all ranks' findings under `ranks`: for each level seconds by round and size, and device figures.

    Only rank 0 returns them; the others' list is empty. The ranks of a node are numbered consecutively. All ranks time
    the same collective at the same time, so that those of a node share its link to the others.
    """
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = _device(rank % ranks_per_node, ranks_per_node)
    limit = timedelta(seconds=JOIN_SECONDS)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meeting_place, rank=rank, world_size=size, timeout=limit)
    nodes = [[*range(first, first + ranks_per_node)] for first in range(0, size, ranks_per_node)]
    places = [list(place) for place in zip(*nodes, strict=True)]
    levels = {"in_node": nodes} if ranks_per_node > 1 else {}
    levels |= {"between_nodes": places} if len(nodes) > 1 else {}
    groups = {level: [dist.new_group(part) for part in parts] for level, parts in levels.items()}
    own = {
        level: next(group for group, part in zip(found, levels[level], strict=True) if rank in part)
        for level, found in groups.items()
    }
    rounds = [{level: _seconds(group, device) for level, group in own.items()} for _ in range(ROUNDS + 1)][1:]
    found = {"rank": rank, "size": size, "backend": backend, "sizes": SIZES, "rounds": rounds}
    found |= _device_figures(device)
    every: list[Any] = [None] * size
    dist.all_gather_object(every, found)
    dist.barrier()
    dist.destroy_process_group()
    return {"ranks": [] if rank else every}


def _device(place: int, ranks_per_node: int) -> "torch.device":
    """Return the GPU of this rank if each rank of a node has its own, else the CPU."""
    import torch

    if torch.cuda.is_available() and torch.cuda.device_count() >= ranks_per_node:
        torch.cuda.set_device(place)
        return torch.device("cuda", place)
    return torch.device("cpu")


def _seconds(group: Any, device: "torch.device") -> list[float]:
    """Return the seconds of a gather of each size within a group, while all other groups do the same."""
    import torch
    import torch.distributed as dist

    found = []
    for nbytes in SIZES:
        mine = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.barrier()
        began = _clock(device)
        for _ in range(REPEATS):
            dist.all_gather(rows, mine, group=group)
        found.append((_clock(device) - began) / REPEATS)
    return found


def _device_figures(device: "torch.device") -> dict[str, Any]:
    """Return the operations and memory bytes per second reached, the smallest operation's seconds, and the memory."""
    import torch

    matrix, vector = torch.ones(SIDE, SIDE, device=device), torch.zeros(ELEMENTS, device=device)
    target, single = torch.empty_like(vector), torch.zeros(1, device=device)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "flops_per_second": 2 * SIDE**3 / _least(lambda: matrix @ matrix, device),
        "memory_bytes_per_second": 2 * vector.nbytes / _least(lambda: target.copy_(vector), device),
        "launch_seconds": _least(lambda: single.add_(1), device),
        "memory_bytes": memory,
    }


def _least(work: Callable[[], object], device: "torch.device") -> float:
    """Return the least seconds of several runs of `work`."""
    seconds = []
    for _ in range(5):
        began = _clock(device)
        work()
        seconds.append(_clock(device) - began)
    return min(seconds)


def _clock(device: "torch.device") -> float:
    """Return the seconds of a clock once `device` has finished its work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    report(main(sys.argv[1], int(sys.argv[2])))
