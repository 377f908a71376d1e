"""The device of a rank, and where ranks meet."""

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store

from benchmarks.core.cell import Cell
from benchmarks.core.devices import DEVICE_VARIABLE, wanted_device
from benchmarks.core.files import load_json, save_json
from benchmarks.core.interfaces import address_of, check_name
from resireduce.comm.horovod import import_horovod
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


# --- Horovod ---

FUSION_VARIABLE = "HOROVOD_FUSION_THRESHOLD"
FUSION_BYTES = 128 * 2**20
"""Horovod's own default size of its fusion buffer, set explicitly so that records can name it."""
JOB = "horovod job"
"""Key of what rank 0 tells all: the address and port of Horovod's rendezvous, and each rank's place in the job."""


def join(folder: Path, world_size: int, nodes: str | Sequence[Sequence[int]] = "flat") -> None:
    """Initialise Horovod; all ranks must call this together.

    The environment has RANK, LOCAL_RANK and LOCAL_WORLD_SIZE. Gloo uses the interface GLOO_SOCKET_IFNAME, else the
    loopback. Rank 0 serves the rendezvous until all ranks have met in `folder`, which was empty and which all see.
    `nodes` has the ranks of each node, if nodes are to be averaged separately.

    Raises ConfigError if Horovod cannot be used, or if interface or machine has no address, and ConnectionError or
    torch's DistError if a rank did not come.
    """
    hvd = import_horovod()
    check_name()
    os.environ.setdefault(FUSION_VARIABLE, str(FUSION_BYTES))
    rank, interface = int(os.environ["RANK"]), os.environ.get("GLOO_SOCKET_IFNAME") or "lo"
    store, place = meet(folder, rank, world_size), dict[str, Any](hostname=socket.gethostname())
    place |= {"local_rank": int(os.environ["LOCAL_RANK"]), "local_size": int(os.environ["LOCAL_WORLD_SIZE"])}
    store.set(f"place of rank {rank}", json.dumps(place))
    with serving(store, world_size, address_of(interface)) if rank == 0 else nullcontext():
        os.environ.update(variables(json.loads(store.get(JOB)), rank, interface))
        sets = [] if isinstance(nodes, str) else [hvd.ProcessSet(ranks) for ranks in _sets(nodes, world_size)]
        hvd.init(process_sets=sets)
        hvd.barrier()  # all have met, so the rendezvous is no longer needed


def _sets(nodes: Sequence[Sequence[int]], world_size: int) -> list[list[int]]:
    """Return the sets of the ranks of each node, and of each place in all nodes, unless a set has one or all ranks."""
    sets = [list(node) for node in nodes] + [list(place) for place in zip(*nodes, strict=False)]
    return [ranks for ranks in sets if 1 < len(ranks) < world_size]


def shut_down() -> None:
    """End Horovod in order, with all ranks."""
    import_horovod().shutdown()


def horovod_facts() -> dict[str, Any]:
    """Return Horovod's version, what it was built with and uses, and the memory that it may take for itself."""
    import horovod

    hvd = import_horovod()
    return {
        "version": horovod.__version__,
        "controller": "mpi" if hvd.mpi_enabled() else "gloo",
        "nccl_built": hvd.nccl_built(),  # the version's code, 0 without
        "mpi_built": hvd.mpi_built(),
        "gloo_built": hvd.gloo_built(),
        "fusion_threshold_bytes": int(os.environ[FUSION_VARIABLE]),
    }


@contextmanager
def serving(store: Store, world_size: int, address: str) -> Iterator[None]:
    """Serve Horovod's rendezvous at `address` within the block, as rank 0, and tell all ranks, once they have come."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    places = [json.loads(store.get(f"place of rank {rank}")) for rank in range(world_size)]
    slots = make_slots(places)
    # Horovod's own RendezvousServer listens on all interfaces; this one only on the address, at a free port.
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    server.init([SlotInfo(**slot) for slot in slots])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        told = {"address": address, "port": server.server_address[1], "slots": slots}
        store.set(JOB, json.dumps(told))
        yield
    finally:
        server.shutdown()
        server.server_close()


def make_slots(places: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each rank's place as Horovod counts: within its machine, and among ranks with its local number.

    Horovod identifies machines by their names. If each rank has a host name of its own, as in a container, machines
    with equally many ranks are numbered instead.
    """
    there, slots = Counter(place["hostname"] for place in places), []
    named = all(there[place["hostname"]] == place["local_size"] for place in places)
    for rank, place in enumerate(places):
        across = [other for other, it in enumerate(places) if it["local_rank"] == place["local_rank"]]
        cross = {"cross_rank": across.index(rank), "cross_size": len(across)}
        hostname = place["hostname"] if named else f"machine{cross['cross_rank']}"
        slots.append({**place, **cross, "hostname": hostname, "rank": rank, "size": len(places)})
    return slots


def variables(said: Mapping[str, Any], rank: int, interface: str) -> dict[str, str]:
    """Return the environment from which Horovod reads a rank's place, with Gloo as its controller."""
    slot = {f"HOROVOD_{name.upper()}": str(value) for name, value in said["slots"][rank].items()}
    where = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": said["address"], "HOROVOD_GLOO_RENDEZVOUS_PORT": str(said["port"])}
    how = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": interface}
    return slot | where | how
