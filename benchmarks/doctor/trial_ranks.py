"""One rank of a check: join the others and sum a vector. `python -m benchmarks.doctor.trial_ranks WAY ...`."""

import ctypes
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.child import report

if TYPE_CHECKING:
    import torch

NUMEL = 100_000
"""Elements of the vector: too many for a message that any transport would treat as small."""
JOIN_SECONDS = 30
LIBMPI = "libmpi.so.40"
"""Name of the library in Open MPI 4 and 5."""
SIZE_VARIABLES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


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


def mpi_rank() -> dict[str, Any]:
    """Sum over MPI, through Horovod if built with it, else libmpi; without either, report the launcher's variables."""
    if find_spec("horovod") is not None:
        import horovod.torch as hvd

        if hvd.mpi_built():
            os.environ["HOROVOD_CONTROLLER"] = "mpi"
            return horovod_rank() | {"through": "Horovod"}
    try:
        return _libmpi_rank(ctypes.CDLL(LIBMPI, mode=ctypes.RTLD_GLOBAL))
    except OSError:  # not installed
        pass
    for rank, size in SIZE_VARIABLES:
        if size in os.environ:
            found = {"rank": int(os.environ[rank]), "size": int(os.environ[size])}
            return found | {"right": True, "through": "variables of the launcher"}
    raise RuntimeError(f"neither Horovod with MPI nor {LIBMPI} is here, and no launcher said a size")


def _libmpi_rank(libmpi: ctypes.CDLL) -> dict[str, Any]:
    """Sum through Open MPI's C interface, whose handles are addresses of its own objects."""

    def handle(name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(libmpi, name)))

    libmpi.MPI_Init(None, None)
    world, rank, size, total = handle("ompi_mpi_comm_world"), ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    libmpi.MPI_Comm_rank(world, ctypes.byref(rank))
    libmpi.MPI_Comm_size(world, ctypes.byref(size))
    mine = ctypes.c_int(rank.value + 1)
    how = (ctypes.c_int(1), handle("ompi_mpi_int"), handle("ompi_mpi_op_sum"), world)
    libmpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), *how)
    libmpi.MPI_Finalize()
    right = total.value == size.value * (size.value + 1) // 2
    return {"rank": rank.value, "size": size.value, "right": right, "through": LIBMPI}


def _is_sum(vector: "torch.Tensor", size: int) -> bool:
    return bool((vector == size * (size + 1) / 2).all())


WAYS: dict[str, Callable[..., dict[str, Any]]] = {"torch": torch_rank, "horovod": horovod_rank, "mpi": mpi_rank}

if __name__ == "__main__":
    report(WAYS[sys.argv[1]](*sys.argv[2:]))
