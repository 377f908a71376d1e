"""Where the ranks of torch.distributed meet: a file on one machine, a store at rank 0 between several."""

import os
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from benchmarks.files import save_json
from benchmarks.training.interfaces import address_of
from benchmarks.training.meeting import wait_for

STORES = ("file", "tcp")
MEETING_SECONDS = 120.0
"""How long ranks wait for each other: they import torch meanwhile, on a busy machine one after the other."""
STORE = "torch.json"
"""Rank 0's word to all: the address and port of the store."""


def find_store(kind: str, folder: Path, rank: int, world_size: int) -> dist.Store:
    """Return the store of a kind in STORES that ranks meet in, through an empty folder that all see.

    That in a file is for one machine: it is locked, which network disks do not always do.
    """
    if kind == "file":
        return dist.FileStore(str(folder / "rendezvous"), world_size)
    return tcp_store(folder, rank, world_size, address_of(os.environ.get("GLOO_SOCKET_IFNAME") or "lo"))


def tcp_store(folder: Path, rank: int, world_size: int, address: str, seconds: float = MEETING_SECONDS) -> dist.Store:
    """Return the store that rank 0 serves at a free port.

    Args:
        folder: empty before, and seen by all ranks.
        rank: of this process.
        world_size: number of ranks.
        address: of this machine; that of rank 0 is the one that counts.
        seconds: how long to wait for the other ranks.

    Raises:
        ConnectionError: rank 0 did not come.
    """
    timeout = timedelta(seconds=seconds)
    if rank == 0:
        store = dist.TCPStore(address, 0, world_size, is_master=True, timeout=timeout, wait_for_workers=False)
        save_json({"address": address, "port": store.port}, folder / STORE)
        return store
    said = wait_for(folder / STORE, rank, seconds)
    return dist.TCPStore(said["address"], said["port"], world_size, is_master=False, timeout=timeout)
