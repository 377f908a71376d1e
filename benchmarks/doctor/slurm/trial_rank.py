"""One task of a trial's first step: report its place and node, and whether the node reaches the others.

`srun ... python -m benchmarks.doctor.slurm.trial_rank FOLDER`. Standard library only; cells test torch's needs.
"""

import errno
import fcntl
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.core.content import LIBRARY, TRAINING, content_hash
from benchmarks.core.files import load_json, save_json
from benchmarks.core.interfaces import address_of, interface_to
from benchmarks.launching.slurm.queue import host_names
from resireduce.errors import ConfigError

POLL_SECONDS = 0.05
MEET_SECONDS = 90.0
"""Seconds until a file must be visible on another node; network disks cache folder contents for a minute."""
CONNECT_SECONDS = 3.0
LOOPBACK = "lo"
HELD, NOT_HELD, NO_LOCKS = "held", "not held", "no locks"


def main(folder: Path) -> None:
    """Write `rank<number>.json` to the folder when all tests of this rank are done."""
    environment, node = os.environ, int(os.environ["SLURM_NODEID"])
    found: dict[str, Any] = {
        "rank": int(environment["SLURM_PROCID"]),
        "local_rank": int(environment["SLURM_LOCALID"]),
        "host": environment.get("SLURMD_NODENAME", socket.gethostname()),
        "visible_gpus": environment.get("CUDA_VISIBLE_DEVICES"),
    }
    if found["local_rank"] == 0:
        hosts = host_names(environment["SLURM_STEP_NODELIST"])
        others = [host for host in hosts if host != found["host"]]
        found |= {"content": content_hash((*LIBRARY, *TRAINING)), "devices": addresses()}
        found |= route(others)
        if others:
            if node == 0:
                lead(folder, len(hosts), found)
            else:
                found |= follow(folder, node, found)
    save_json(found, folder / f"rank{found['rank']}.json")


def addresses() -> dict[str, str]:
    """Return this node's network devices with their IPv4 addresses, without the loopback."""
    found = {}
    for _, name in socket.if_nameindex():
        with suppress(ConfigError):
            found[name] = address_of(name)
    return {name: address for name, address in found.items() if name != LOOPBACK}


def route(others: list[str]) -> dict[str, Any]:
    """Return the device of the route to another node, or why there is none."""
    if not others:
        return {}
    try:
        return {"route": interface_to(others[0])}
    except ConfigError as error:
        return {"route": None, "no_route": str(error)}


def lead(folder: Path, nodes: int, found: dict[str, Any]) -> None:
    """On the first node: hold a lock, listen for connections, and answer in files, until all others are done."""
    deadline = time.monotonic() + MEET_SECONDS
    with (folder / "lock").open("w") as lock, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        locked = _try_lock(lock.fileno()) == "taken"
        server.bind(("", 0))
        server.listen(128)  # connections need no answer
        port = server.getsockname()[1]
        first = {"port": port, "locked": locked, **{name: found[name] for name in ("host", "devices", "route")}}
        save_json(first, folder / "first.json")
        answered: set[int] = set()
        while time.monotonic() < deadline:
            names = os.listdir(folder)
            for node in range(1, nodes):
                if node not in answered and f"hello{node}" in names:
                    (folder / f"reply{node}").touch()
                    answered.add(node)
            if all(f"done{node}" in names for node in range(1, nodes)):
                return
            time.sleep(POLL_SECONDS)


def follow(folder: Path, node: int, found: dict[str, Any]) -> dict[str, Any]:
    """On another node: see the first node's file, get an answer to an own file, try its lock, connect to it."""
    deadline = time.monotonic() + MEET_SECONDS
    if not _appears(folder, "first.json", deadline):
        return {"seen": False}
    first, begin = load_json(folder / "first.json"), time.monotonic()
    (folder / f"hello{node}").touch()
    answered = _appears(folder, f"reply{node}", deadline)
    found = {"seen": answered, "round_trip_seconds": time.monotonic() - begin}
    with (folder / "lock").open("a") as lock:
        mine = _try_lock(lock.fileno())
    found["lock"] = {"busy": HELD, "taken": NOT_HELD}.get(mine, NO_LOCKS) if first["locked"] else NO_LOCKS
    reached = {name: _connects(address, first["port"]) for name, address in first["devices"].items()}
    (folder / f"done{node}").touch()
    return found | {"reached": reached, "first_route": first["route"]}


def _try_lock(descriptor: int) -> str:
    """Return "taken", "busy" or "none", locking as working folders of cells do."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "busy"
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return "none"
    return "taken"


def _appears(folder: Path, name: str, deadline: float) -> bool:
    """Return whether a file appears in time. It lists the folder, as a missing file may be cached as missing."""
    while name not in os.listdir(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _connects(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
