"""Makes the ranks of a cell a Horovod job, and describes it.

Ranks find each other through files in a folder that all of them see.
"""

import math
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json, save_json
from benchmarks.core.interfaces import address_of, check_name
from benchmarks.training.place import LIKEWISE
from resireduce.comm.horovod import import_horovod
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
    return backend == "horovod" and bool(import_horovod().nccl_built())


def join(
    folder: Path,
    world_size: int,
    seconds: float = MEETING_SECONDS,
    nodes: str | Sequence[Sequence[int]] = "flat",
) -> None:
    """Initialise Horovod; all ranks must call this together.

    If horovodrun or mpirun has started this process, Horovod knows all it needs. Otherwise the environment has RANK,
    LOCAL_RANK and LOCAL_WORLD_SIZE, and rank 0 serves the rendezvous until all ranks have met. Gloo uses the interface
    GLOO_SOCKET_IFNAME, else the loopback.

    Args:
        folder: empty before, and seen by all ranks.
        world_size: number of ranks.
        seconds: how long to wait for the other ranks.
        nodes: the ranks of each node, if nodes are to be averaged separately.

    Raises ConfigError if Horovod cannot be used, or not with this many ranks, or if interface or machine has no
    address, and ConnectionError if a rank did not come.
    """
    hvd = import_horovod()
    os.environ.setdefault(FUSION_VARIABLE, str(FUSION_BYTES))
    sets = [] if isinstance(nodes, str) else [hvd.ProcessSet(ranks) for ranks in _sets(nodes, world_size)]
    if is_started_by_another():
        hvd.init(process_sets=sets)
    else:
        check_name()
        rank = int(os.environ["RANK"])
        interface = os.environ.get("GLOO_SOCKET_IFNAME") or "lo"
        come(folder, rank, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
        server = serving(folder, world_size, address_of(interface), seconds) if rank == 0 else nullcontext()
        with server:
            os.environ.update(variables(wait_for(folder / MEETING, rank, seconds), rank, interface))
            os.environ.setdefault(GLOO_TIMEOUT_VARIABLE, str(math.ceil(seconds)))
            hvd.init(process_sets=sets)
            hvd.barrier()  # all have met, so the rendezvous is no longer needed
    if hvd.size() != world_size:
        could = hvd.size() > 1 or hvd.mpi_built()
        cure = "start as many" if could else "mpirun needs a Horovod that was built with MPI"
        raise ConfigError(f"world_size: {world_size} is not the {hvd.size()} ranks that Horovod has found; {cure}")


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


POLL_SECONDS = 0.02
MEETING = "horovod.json"
"""Rank 0's message to all: the address and port of Horovod's rendezvous, and each rank's place in the job."""


def come(folder: Path, rank: int, local_rank: int, local_size: int) -> None:
    """Write to `folder` which machine this rank is on, and its number there."""
    place = {"hostname": socket.gethostname(), "local_rank": local_rank, "local_size": local_size}
    save_json(place, _place(folder, rank))


@contextmanager
def serving(folder: Path, world_size: int, address: str, seconds: float) -> Iterator[None]:
    """Serve Horovod's rendezvous at `address` within the block, as rank 0, and tell all ranks.

    Raises ConnectionError, one line, if some have not come after `seconds`.
    """
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    places = _places(folder, world_size, seconds)
    slots = [SlotInfo(**slot) for slot in make_slots(places)]
    # Horovod's own RendezvousServer listens on all interfaces; this one only on the address, at a free port.
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        told = {"address": address, "port": server.server_address[1], "slots": [asdict(slot) for slot in slots]}
        save_json(told, folder / MEETING)
        yield
    finally:
        server.shutdown()
        server.server_close()


def wait_for(path: Path, rank: int, seconds: float) -> dict[str, Any]:
    """Return what another rank writes to a file. Raises ConnectionError, one line, if it is missing after `seconds`.

    The folder is listed, since a network disk may remember a file as missing, but is asked anew for a listing.
    """
    deadline = time.monotonic() + seconds
    while path.name not in os.listdir(path.parent):
        if time.monotonic() > deadline:
            raise ConnectionError(f"rank {rank} waited {seconds:g} s for {path}: a rank did not come, its log says why")
        time.sleep(POLL_SECONDS)
    said: dict[str, Any] = load_json(path)
    return said


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


def _place(folder: Path, rank: int) -> Path:
    return folder / f"horovod.rank{rank}.json"


def _places(folder: Path, world_size: int, seconds: float) -> list[dict[str, Any]]:
    """Return the places of all ranks, once they have come."""
    deadline, files = time.monotonic() + seconds, [_place(folder, rank) for rank in range(world_size)]
    while missing := [rank for rank, file in enumerate(files) if file.name not in os.listdir(folder)]:
        if time.monotonic() > deadline:
            ranks = ", ".join(map(str, missing))
            raise ConnectionError(f"rank 0 waited {seconds:g} s in {folder}: a rank did not come ({ranks})")
        time.sleep(POLL_SECONDS)
    return [load_json(file) for file in files]
