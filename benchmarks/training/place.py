"""The device of a rank, and where ranks meet."""

import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core.cell import Cell
from benchmarks.core.devices import DEVICE_VARIABLE, wanted_device
from benchmarks.core.files import load_json, save_json
from benchmarks.core.interfaces import address_of
from resireduce.errors import ConfigError

CUBLAS_WORKSPACE = ":4096:8"
"""The setting that cuBLAS needs to give the same sums each time; it takes 32 MiB of the device."""


@dataclass(frozen=True)
class Place:
    """Where one rank trains."""

    device: torch.device
    process_group: str
    """gloo or nccl."""
    ranks_on_device: int
    """How many ranks of this machine share the device, this one included."""


def choose_place(cuda: Any = None) -> Place:
    """Choose by LOCAL_RANK and LOCAL_WORLD_SIZE: a GPU for each local rank, else one for all, else the CPU.

    Makes no CUDA context. NCCL refuses two ranks on one GPU: these use gloo. `cuda` is torch.cuda, or a stand-in for
    it. Raises ConfigError if a GPU is asked for and there is none.
    """
    cuda, wanted = cuda or torch.cuda, wanted_device()
    gpus = 0 if wanted == "cpu" else int(cuda.device_count())
    if wanted == "cuda" and not gpus:
        raise ConfigError(f"{DEVICE_VARIABLE}: 'cuda' is not allowed without a CUDA device; set cpu, or leave it out")
    if not gpus:
        return Place(torch.device("cpu"), "gloo", 1)
    rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks <= gpus and rank < gpus:
        return Place(torch.device("cuda", rank), "nccl", 1)
    return Place(torch.device("cuda", 0), "gloo", ranks)


def nodes_of(cell: Cell) -> str | list[list[int]]:
    """Return the hierarchy that `resireduce.distribute` is given for a cell: "flat", or the ranks of each node.

    Ranks of a machine follow one another, whichever of the suite's launchers starts them.
    """
    if cell.hierarchy == "flat":
        return cell.hierarchy
    size = cell.ranks_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", cell.world_size))
    ranks = range(cell.world_size)
    return [[*ranks[first : first + size]] for first in range(0, cell.world_size, size)]


def settle_arithmetic(device: torch.device) -> None:
    """Make results repeatable as far as possible: on a GPU, operations that are not repeatable give a warning.

    TF32 is off, both in matrix products and in convolutions, where torch uses it by default.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        # Deterministic algorithms would fill every new tensor with NaN first, which costs time in every step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")


MEETING_SECONDS = 120.0
"""How long ranks wait for each other while they import torch, on a busy machine one after the other."""
POLL_SECONDS = 0.02
STORE = "store.json"
"""Rank 0's message to all: the address and port of the store."""


def meet(folder: Path, rank: int, world_size: int, seconds: float = MEETING_SECONDS) -> dist.Store:
    """Return the store that rank 0 serves at a free port, which it tells in an empty folder that all ranks see.

    Its address is that of the interface GLOO_SOCKET_IFNAME, else of the loopback. Raises ConnectionError if rank 0 did
    not come in so many seconds. The folder is listed, since a network disk may remember a file as missing.
    """
    timeout, deadline = timedelta(seconds=seconds), time.monotonic() + seconds
    if rank == 0:
        address = address_of(os.environ.get("GLOO_SOCKET_IFNAME") or "lo")
        listens = socket.create_server((address, 0))  # there alone: torch's own would at all addresses
        port = listens.getsockname()[1]
        descriptor = listens.detach()
        store = dist.TCPStore(
            address, port, world_size, True, timeout=timeout, wait_for_workers=False, master_listen_fd=descriptor
        )
        save_json({"address": address, "port": store.port}, folder / STORE)
        return store
    while STORE not in os.listdir(folder):
        if time.monotonic() > deadline:
            raise ConnectionError(f"rank {rank} waited {seconds:g} s for {folder / STORE}: a rank did not come")
        time.sleep(POLL_SECONDS)
    said = load_json(folder / STORE)
    return dist.TCPStore(said["address"], said["port"], world_size, is_master=False, timeout=timeout)
