"""The processes that checks start, each of which reports once: `python -m benchmarks.doctor.in_child WAY ...`."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from benchmarks.core.devices import Nvml, NvmlUnavailable
from benchmarks.doctor.machine_checks import one_line
from benchmarks.launching.processes import report
from resireduce.scheme import load

if TYPE_CHECKING:
    import torch


# --- what torch and NVML say ---

SIDE = 256
"""Rows and columns of the matrices that each GPU multiplies."""
RANK_FACTS = "benchmarks.training.measure.rank_facts"


def facts() -> dict[str, Any]:
    """Return the values of `Facts`."""
    found: dict[str, Any] = {}
    nvml: Nvml | None = None
    try:
        nvml = Nvml.load()
        found["driver"] = nvml.driver_version()
    except NvmlUnavailable as error:
        found["nvml_error"] = one_line(error)
    try:
        import torch
    except Exception as error:
        return found | {"torch_error": one_line(f"{type(error).__name__}: {error}")}
    return found | _torch_facts(torch, nvml)


def _torch_facts(torch: ModuleType, nvml: Nvml | None) -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.version.cuda is None:
        return found
    found["nccl"] = load(f"{RANK_FACTS}:nccl_version")()
    try:
        torch.cuda.init()
    except Exception as error:
        return found | {"no_gpu": one_line(error)}
    return found | {"gpus": [_gpu(torch, nvml, index) for index in range(torch.cuda.device_count())]}


def _gpu(torch: ModuleType, nvml: Nvml | None, index: int) -> dict[str, Any]:
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(device)
    found = {"name": properties.name, "memory_bytes": properties.total_memory}
    found |= {"capability": [properties.major, properties.minor], "error": _multiply(torch, device)}
    if nvml is None:
        return found
    try:
        reading = nvml.device(str(properties.uuid), index, os.environ.get("CUDA_VISIBLE_DEVICES")).read()
    except NvmlUnavailable as error:
        return found | {"nvml_reason": one_line(error)}
    return found | {"nvml_reason": reading.device_reason or reading.process_reason}


def _multiply(torch: ModuleType, device: Any) -> str | None:
    """Return why a matrix product of ones is wrong, or None; it leaves a CUDA context, whose memory NVML can find."""
    try:
        ones = torch.ones(SIDE, SIDE, device=device)
        return None if bool((ones @ ones == SIDE).all()) else "a matrix product is wrong"
    except Exception as error:
        return one_line(error)


# --- what the one-GPU check records of its device ---

KEPT = ("device", "device_memory_bytes", "driver", "cuda", "cudnn", "nccl", "tf32")


def device_facts() -> dict[str, Any]:
    """Return versions and the properties of the first GPU, which are None without one."""
    import torch

    driver = None
    with suppress(NvmlUnavailable):  # the check works without it
        driver = Nvml.load().driver_version()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    facts = load(f"{RANK_FACTS}:rank_facts")(device, None, driver)
    return {name: facts[name] for name in KEPT} | {"uuid": facts["gpu_uuid"], "torch": torch.__version__}


# --- one of some ranks that add up a vector ---

NUMEL = 100_000
"""Elements of the vector: too many for a message that any transport would treat as small."""
JOIN_SECONDS = 30


def torch_rank(backend: str, meeting_place: str) -> dict[str, Any]:
    """Sum over torch.distributed, by RANK and WORLD_SIZE; with nccl, on the GPU of the same number."""
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    limit = timedelta(seconds=JOIN_SECONDS)
    dist.init_process_group(backend, init_method=f"file://{meeting_place}", rank=rank, world_size=size, timeout=limit)
    vector = torch.full((NUMEL,), rank + 1.0, device=device)
    dist.all_reduce(vector)
    found = {"rank": rank, "size": dist.get_world_size(), "right": _is_sum(vector, size)}
    dist.destroy_process_group()
    return found


def horovod_rank() -> dict[str, Any]:
    """Sum over Horovod on the CPU, with any launcher, and report what Horovod was built with."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    vector = hvd.allreduce(torch.full((NUMEL,), hvd.rank() + 1.0), op=hvd.Sum, name="doctor")
    built = {"mpi": bool(hvd.mpi_built()), "gloo": bool(hvd.gloo_built()), "nccl": int(hvd.nccl_built())}
    found = {"rank": hvd.rank(), "size": hvd.size(), "right": _is_sum(vector, hvd.size()), "built": built}
    hvd.shutdown()
    return found


def _is_sum(vector: "torch.Tensor", size: int) -> bool:
    return bool((vector == size * (size + 1) / 2).all())


# --- one of the ranks that time links and their device ---

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 21)
"""Sizes in bytes of each rank's part of a gather."""
ROUNDS, REPEATS = 20, 4
"""Rounds over all sizes, and how often a gather is repeated in each."""
LINKS_JOIN_SECONDS = 60
LINKS_SIDE, ELEMENTS = 512, 1 << 23
"""Side of the multiplied matrices, and elements of the copied vector: more than fits into caches."""


def links_rank(meeting_place: str, ranks_per_node: int) -> dict[str, Any]:
    """Return all ranks' findings under `ranks`: for each level seconds by round and size, and device figures.

    Only rank 0 returns them; the others' list is empty. The ranks of a node are numbered consecutively. All ranks time
    the same collective at the same time, so that those of a node share its link to the others.
    """
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = _device(rank % ranks_per_node, ranks_per_node)
    limit = timedelta(seconds=LINKS_JOIN_SECONDS)
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

    matrix, vector = torch.ones(LINKS_SIDE, LINKS_SIDE, device=device), torch.zeros(ELEMENTS, device=device)
    target, single = torch.empty_like(vector), torch.zeros(1, device=device)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "flops_per_second": 2 * LINKS_SIDE**3 / _least(lambda: matrix @ matrix, device),
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


WAYS: dict[str, Callable[..., dict[str, Any]]] = {
    "facts": facts,
    "device": device_facts,
    "torch": torch_rank,
    "horovod": horovod_rank,
    "links": lambda meeting_place, ranks_per_node: links_rank(meeting_place, int(ranks_per_node)),
}

if __name__ == "__main__":
    report(WAYS[sys.argv[1]](*sys.argv[2:]))
