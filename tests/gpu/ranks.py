"""Processes of their own for ranks whose tensors are on the device."""

import gc
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.training.place import settle_arithmetic

Check = Callable[[torch.device], None]


def all_alike(model: torch.nn.Module) -> bool:
    """Whether all ranks hold the same parameters; gloo gathers those of the host only, NCCL those of the device."""
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    mine = mine.cpu() if dist.get_backend() == "gloo" else mine
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, mine)
    return all(torch.equal(mine, other) for other in theirs)


def _rank(rank: int, size: int, folder: str, backend: str, device: torch.device, checks: Sequence[Check]) -> None:
    gc.freeze()  # as in tests/processes.py
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(0)
    settle_arithmetic(device)
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    failures = []
    for check in checks:
        try:
            check(device)
        except Exception as error:
            if size > 1:  # others may wait for this rank
                raise
            failures.append(error)
    if failures:
        raise ExceptionGroup("checks that failed", failures)
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(size: int, backend: str, device: torch.device, *checks: Check) -> None:
    """Run `checks`, functions of a module, in `size` processes that share the device; a single one runs them all."""
    with tempfile.TemporaryDirectory() as folder:
        # Ranks are forked off a process that has loaded torch and the library; not on a GPU, for which nobody may ask
        # before a fork.
        multiprocessing.set_forkserver_preload([__name__, "tests.gpu.loops"])
        method = "forkserver" if device.type == "cpu" else "spawn"
        mp.start_processes(_rank, (size, folder, backend, device, checks), nprocs=size, start_method=method)
