"""One rank of a check: join the others and sum a vector. `python -m benchmarks.doctor.trial_ranks WAY ...`."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.child import report

if TYPE_CHECKING:
    import torch

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


WAYS: dict[str, Callable[..., dict[str, Any]]] = {"torch": torch_rank, "horovod": horovod_rank}

if __name__ == "__main__":
    report(WAYS[sys.argv[1]](*sys.argv[2:]))
