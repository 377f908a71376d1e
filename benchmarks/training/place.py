"""The device of a rank, and the process group over which ranks reach each other."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.core.cell import Cell
from benchmarks.core.devices import DEVICE_VARIABLE, wanted_device
from resireduce.errors import ConfigError

CUBLAS_WORKSPACE = ":4096:8"
"""The setting that cuBLAS needs to give the same sums each time; it takes 32 MiB of the device."""
LIKEWISE = {
    "RANK": ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"),
    "LOCAL_RANK": ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "LOCAL_WORLD_SIZE": ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}
"""Names of the same variables under horovodrun and Open MPI's mpirun."""


@dataclass(frozen=True)
class Place:
    """Where one rank trains."""

    device: torch.device
    process_group: str
    """gloo or nccl."""
    ranks_on_device: int
    """How many ranks of this machine share the device, this one included."""


def choose_place(cuda: Any = None, own_gpu: bool = False) -> Place:
    """Choose by LOCAL_RANK and LOCAL_WORLD_SIZE: a GPU for each local rank, else one for all, else the CPU.

    Makes no CUDA context. NCCL refuses two ranks on one GPU: these use gloo. `cuda` is torch.cuda, or a stand-in for
    it. Raises ConfigError if a GPU is asked for and there is none, or if ranks that need their `own_gpu` had to share.
    """
    cuda, wanted = cuda or torch.cuda, wanted_device()
    gpus = 0 if wanted == "cpu" else int(cuda.device_count())
    if wanted == "cuda" and not gpus:
        raise ConfigError(f"{DEVICE_VARIABLE}: 'cuda' is not allowed without a CUDA device; set cpu, or leave it out")
    if not gpus:
        return Place(torch.device("cpu"), "gloo", 1)
    rank, ranks = from_launcher("LOCAL_RANK", 0), from_launcher("LOCAL_WORLD_SIZE", 1)
    if ranks <= gpus and rank < gpus:
        return Place(torch.device("cuda", rank), "nccl", 1)
    if own_gpu:
        raise ConfigError(
            f"backend: 'horovod', built with NCCL, needs a GPU for each of the {ranks} ranks of a machine, which has "
            f"{gpus}; give a smaller world_size, choose backend torch, or set {DEVICE_VARIABLE}=cpu"
        )
    return Place(torch.device("cuda", 0), "gloo", ranks)


def from_launcher(name: str, default: int) -> int:
    """Return what the launcher says of this rank's place: the suite or torchrun, or else horovodrun or mpirun."""
    return int(next((os.environ[it] for it in (name, *LIKEWISE[name]) if it in os.environ), default))


def nodes_of(cell: Cell) -> str | list[list[int]]:
    """Return the hierarchy that `resireduce.distribute` is given for a cell: "flat", or the ranks of each node.

    Ranks of a machine follow one another, whichever of the suite's launchers starts them.
    """
    if cell.hierarchy == "flat":
        return cell.hierarchy
    size, ranks = cell.ranks_per_node or from_launcher("LOCAL_WORLD_SIZE", cell.world_size), range(cell.world_size)
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
