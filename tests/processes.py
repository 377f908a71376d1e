"""Tests that need processes of their own, one for each rank."""

import multiprocessing
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from resireduce.comm.base import Communicator
from resireduce.comm.torch import TorchCommunicator

Checks = Callable[[Communicator], None]


def _rank(rank: int, world_size: int, folder: str, checks: Checks) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    checks(TorchCommunicator())
    dist.destroy_process_group()


def start(world_size: int, folder: str, checks: Checks) -> mp.ProcessContext:
    """Start `checks`, a function of a module, in `world_size` processes, which meet in `folder`, an empty one."""
    # Ranks are forked off a process that has imported torch and the library, which takes most of a start.
    multiprocessing.set_forkserver_preload([__name__, "resireduce.ddp", "resireduce.fsdp"])
    arguments = (world_size, folder, checks)
    return mp.start_processes(_rank, arguments, nprocs=world_size, join=False, start_method="forkserver")


def on_processes(world_size: int, checks: Checks) -> None:
    """Run `checks`, a function of a module, in `world_size` processes; a failure in one is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(world_size, folder, checks)
        while not ranks.join():
            pass


def all_equal(model: nn.Module) -> bool:
    """Whether all ranks hold the same parameters."""
    for parameter in model.parameters():
        theirs = [torch.empty_like(parameter.data) for _ in range(dist.get_world_size())]
        dist.all_gather(theirs, parameter.data)
        if not all(torch.equal(parameter.data, other) for other in theirs):
            return False
    return True
