"""Times collectives between otherwise idle ranks: one after the other, many at once, and their processor time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from resireduce.comm.base import Communicator

REDUCED_BYTES = (256, 1 << 14, 1 << 17, 1 << 19)
"""Bytes of a dense tensor: from a bias to the largest of a small model."""
GATHERED_BYTES = (64, 1 << 12, 1 << 14, 1 << 16, 1 << 17)
"""Bytes of one rank's payload: from that of a small tensor to all of a small model's in one message."""
IN_TURN, AT_ONCE = 3, 6
"""Numbers of collectives that wait for each other, and that are launched together."""


@dataclass(frozen=True)
class Collective:
    """A collective among the ranks of `communicator`, of tensors of `dtype`."""

    communicator: Communicator
    kind: str
    """all_reduce or all_gather."""
    dtype: torch.dtype
    sizes: Sequence[int]
    """Sizes in bytes."""


def collectives(levels: Mapping[str, Communicator]) -> dict[str, Collective]:
    """Return the collectives that steps need on each of the `levels`, by name: "level kind".

    all_reduce_half is for float16, whose sums take processors longer.
    """
    found = {}
    for level, communicator in levels.items():
        half = [size // 2 for size in REDUCED_BYTES]
        found[f"{level} all_reduce"] = Collective(communicator, "all_reduce", torch.float32, REDUCED_BYTES)
        found[f"{level} all_reduce_half"] = Collective(communicator, "all_reduce", torch.float16, half)
        found[f"{level} all_gather"] = Collective(communicator, "all_gather", torch.uint8, GATHERED_BYTES)
    return found


def sample(collective: Collective, meet: Callable[[], None]) -> list[dict[str, Any]]:
    """Return for each size its bytes, and the seconds of a collective: in turn, at once, and of processor time.

    Ranks begin when a small collective is done, which is closer to simultaneous than their return from `meet`.

    Args:
        collective: the collective that is timed.
        meet: returns when all ranks have called it, including those of other groups, which may share links.
    """
    rows = []
    for size in collective.sizes:
        meet()
        _launch(collective, collective.sizes[0], 0).wait()
        start = time.perf_counter()
        for number in range(IN_TURN):
            _launch(collective, size, number).wait()
        in_turn = (time.perf_counter() - start) / IN_TURN
        meet()
        _launch(collective, collective.sizes[0], 0).wait()
        start, busy = time.perf_counter(), time.process_time()
        handles = [_launch(collective, size, number) for number in range(AT_ONCE)]
        for handle in handles:
            handle.wait()
        at_once = (time.perf_counter() - start) / AT_ONCE
        busy = (time.process_time() - busy) / AT_ONCE
        rows.append({"bytes": size, "in_turn": in_turn, "at_once": at_once, "processor": busy})
    return rows


def _launch(collective: Collective, nbytes: int, number: int) -> Any:
    tensor = torch.zeros(nbytes // collective.dtype.itemsize, dtype=collective.dtype)
    name = f"timed.{collective.kind}.{number}"
    if collective.kind == "all_reduce":
        return collective.communicator.all_reduce(tensor, name)
    return collective.communicator.all_gather(tensor, name)
