"""Programs of one launch that wait for each other, so that what took several launches takes one.

All of them must be on the device at once: a cooperative launch places all of them together, or none as long as there is
no room for all. So they never hold a part of the device while others of them wait to start. A quarter of the
multiprocessors is left free for NCCL's programs, which stay as long as the network takes: otherwise a selection, and
the backward pass behind it, would wait until they end.
"""

from typing import Any

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, at_once, jit, tl

PROGRAMS = 1024
"""Most programs, a power of two."""
WARPS = 16
"""Warps, of 32 threads each, of a program."""
FIELD = 32
"""Distance of counters in shared memory of the programs, so that waiting does not slow down counting."""


@jit
def wait(arrived, times):  # type: ignore[no-untyped-def]
    """Return when all programs have called this `times` times; what they wrote before is then visible.

    arrived: address of the counter, 0 at first.
    """
    tl.debug_barrier()  # all threads of this program have written
    come = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") + 1
    while come < times * tl.num_programs(0):
        come = tl.atomic_add(arrived, 0, sem="acq_rel", scope="gpu")
    tl.debug_barrier()  # none of them reads before


@jit
def share_of(size, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the first of this program's elements of `size`, and how many times TILE they are at most."""
    tiles = tl.cdiv(tl.cdiv(size, tl.num_programs(0)), TILE)
    first = tl.program_id(0) * tiles * TILE
    return first, tl.maximum(tl.minimum(tiles, tl.cdiv(size - first, TILE)), 0)


def programs_for(device: torch.device, tiles: int) -> int:
    """Return how many programs go over `tiles` pieces on `device`; in the interpreter, which has no two at once, 1."""
    return max(1, min(PROGRAMS, at_once(device) * 3 // 4, tiles))


def together(flat: Tensor) -> dict[str, Any]:
    """Return how kernels on the device of `flat` are launched whose programs wait for each other."""
    return EXACT | {"num_warps": WARPS} | ({"launch_cooperative_grid": True} if flat.is_cuda else {})
