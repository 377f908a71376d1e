"""Makes the ranks of a cell a Horovod job, and describes its Horovod. Imports torch only when it joins one."""

import math
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.core.interfaces import address_of, check_name
from benchmarks.training.horovod_start import MEETING, come, serving, variables, wait_for
from benchmarks.training.place import LIKEWISE
from resireduce.errors import ConfigError

MEETING_SECONDS = 120.0
"""How long ranks wait for each other while they import torch, on a busy machine one after the other."""
FUSION_VARIABLE = "HOROVOD_FUSION_THRESHOLD"
FUSION_BYTES = 128 * 2**20
"""Horovod's own default size of its fusion buffer, set explicitly so that records can name it."""
GLOO_TIMEOUT_VARIABLE = "HOROVOD_GLOO_TIMEOUT_SECONDS"
"""How long Gloo waits within Horovod, 30 seconds by default: some ranks may see a file on a network disk later."""


def is_started_by_another() -> bool:
    """Return whether horovodrun or mpirun has started this rank; if RANK is set, it was the suite's launcher."""
    return "RANK" not in os.environ and any(name in os.environ for name in LIKEWISE["RANK"])


def needs_own_gpu(backend: str) -> bool:
    """Return whether ranks cannot share a GPU: NCCL, if Horovod was built with it, allows one rank on each."""
    return backend == "horovod" and bool(_horovod().nccl_built())


def join(
    folder: Path,
    world_size: int,
    interface: str | None = None,
    address: str | None = None,
    seconds: float = MEETING_SECONDS,
    nodes: str | Sequence[Sequence[int]] = "flat",
) -> None:
    """Initialise Horovod; all ranks must call this together.

    If horovodrun or mpirun has started this process, Horovod knows all it needs. Otherwise the environment has RANK,
    LOCAL_RANK and LOCAL_WORLD_SIZE, and rank 0 serves the rendezvous until all ranks have met.

    Args:
        folder: empty before, and seen by all ranks.
        world_size: number of ranks.
        interface: network interface that Gloo uses; None takes GLOO_SOCKET_IFNAME, else the loopback.
        address: of rank 0, for the rendezvous; None takes that of the interface.
        seconds: how long to wait for the other ranks.
        nodes: the ranks of each node, if nodes are to be averaged separately.

    Raises:
        ConfigError: Horovod cannot be used, or not with this many ranks, or interface or machine has no address.
        ConnectionError: a rank did not come.
    """
    hvd = _horovod()
    os.environ.setdefault(FUSION_VARIABLE, str(FUSION_BYTES))
    sets = [] if isinstance(nodes, str) else [hvd.ProcessSet(ranks) for ranks in _sets(nodes, world_size)]
    if is_started_by_another():
        hvd.init(process_sets=sets)
    else:
        check_name()
        rank = int(os.environ["RANK"])
        interface = interface or os.environ.get("GLOO_SOCKET_IFNAME") or "lo"
        come(folder, rank, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
        server = serving(folder, world_size, address or address_of(interface), seconds) if rank == 0 else nullcontext()
        with server:
            os.environ.update(variables(wait_for(folder / MEETING, rank, seconds), rank, interface))
            os.environ.setdefault(GLOO_TIMEOUT_VARIABLE, str(math.ceil(seconds)))
            hvd.init(process_sets=sets)
            hvd.barrier()  # all have met, so the rendezvous is no longer needed
    if hvd.size() != world_size:
        cure = (
            "start as many" if hvd.size() > 1 or hvd.mpi_built() else "mpirun needs a Horovod that was built with MPI"
        )
        raise ConfigError(f"world_size: {world_size} is not the {hvd.size()} ranks that Horovod has found; {cure}")


def _sets(nodes: Sequence[Sequence[int]], world_size: int) -> list[list[int]]:
    """Return the sets of the ranks of each node, and of each place in all nodes, unless a set has one or all ranks."""
    sets = [list(node) for node in nodes] + [list(place) for place in zip(*nodes, strict=False)]
    return [ranks for ranks in sets if 1 < len(ranks) < world_size]


def shut_down() -> None:
    """End Horovod in order, with all ranks."""
    _horovod().shutdown()


def horovod_facts() -> dict[str, Any]:
    """Return Horovod's version, what it was built with and uses, and the memory that it may take for itself."""
    import horovod

    hvd = _horovod()
    return {
        "version": horovod.__version__,
        "controller": "mpi" if hvd.mpi_enabled() else "gloo",
        "nccl_built": hvd.nccl_built(),  # the version's code, 0 without
        "mpi_built": hvd.mpi_built(),
        "gloo_built": hvd.gloo_built(),
        "fusion_threshold_bytes": int(os.environ[FUSION_VARIABLE]),
    }


def _horovod() -> Any:
    from resireduce.comm.horovod import import_horovod

    return import_horovod()
