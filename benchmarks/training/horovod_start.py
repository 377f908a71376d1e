"""How ranks find each other through files in a folder that all of them see."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json, save_json

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
