"""Tests that need processes of their own, one for each rank."""

import faulthandler
import gc
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from resireduce.comm.base import Communicator
from resireduce.comm.torch import TorchCommunicator

Checks = Callable[[Communicator], None]
SECONDS = 540.0
"""When a rank ends itself, and leaves word of what it was at: it waits for another, which may wait for half an hour."""
WORD = "rank {rank} waited here"


def _rank(rank: int, world_size: int, folder: str, checks: Sequence[Checks]) -> None:
    with (Path(folder) / WORD.format(rank=rank)).open("w") as word:
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=word)
        _check(rank, world_size, folder, checks)
        faulthandler.cancel_dump_traceback_later()


def _check(rank: int, world_size: int, folder: str, checks: Sequence[Checks]) -> None:
    gc.freeze()  # the imports' 300,000 objects, which the library would look through for a GradScaler of each model
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    communicator = TorchCommunicator()
    for check in checks:
        check(communicator)
    dist.destroy_process_group()


def start(world_size: int, folder: str, *checks: Checks) -> mp.ProcessContext:
    """Start `checks`, functions of a module, in `world_size` processes, which meet in `folder`, an empty one."""
    # Ranks are forked off a process that has imported torch and the library, which takes most of a start.
    multiprocessing.set_forkserver_preload([__name__, "resireduce.wrappers.ddp", "resireduce.wrappers.fsdp"])
    arguments = (world_size, folder, checks)
    return mp.start_processes(_rank, arguments, nprocs=world_size, join=False, start_method="forkserver")


def on_processes(world_size: int, *checks: Checks) -> None:
    """Run `checks`, functions of a module, one after the other in `world_size` processes; a failure is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(world_size, folder, *checks)
        try:
            while not ranks.join():
                pass
        except BaseException as error:
            for process in ranks.processes:
                process.kill()
            for word in sorted(Path(folder).glob(WORD.format(rank="*"))):
                if word.stat().st_size:
                    error.add_note(f"{word.name}:\n{word.read_text()}")
            raise


def check_collectives_between(optimizer: torch.optim.Optimizer, model: nn.Module, used: Iterable[nn.Module]) -> None:
    """Steps with a collective of the script's own between backward and step, when ranks have sent different messages.

    used: the layers that this rank uses, of the 120 inputs and outputs that all have.
    """
    layers = nn.Sequential(*used)
    for _ in range(3):
        optimizer.zero_grad()
        layers(torch.ones(2, 120)).square().mean().backward()
        total = torch.ones(())
        dist.all_reduce(total)
        assert total == dist.get_world_size()
        optimizer.step()
    assert all_equal(model)


def all_equal(model: nn.Module) -> bool:
    """Whether all ranks hold the same parameters."""
    for parameter in model.parameters():
        theirs = [torch.empty_like(parameter.data) for _ in range(dist.get_world_size())]
        dist.all_gather(theirs, parameter.data)
        if not all(torch.equal(parameter.data, other) for other in theirs):
            return False
    return True
