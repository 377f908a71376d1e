"""Replaces a gradient that is not finite by zeros, in one launch, which reads it once and writes only then."""

from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor

from resireduce.kernels.gpu.language import EXACT, at_once, jit, on_device, tl

TILE = 4096
"""Elements that are processed at once, a power of two."""
PROGRAMS = 8
"""Most programs for each multiprocessor; in all, they are fewer than 2^15."""
PLACES = 1024
"""For how many gradients there is room at once."""


@jit
def _zero_unless_finite(gradient, states, place, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write to `states`, at `place`, whether all elements are finite; the last program to come writes zeros if not.

    states: pairs of numbers, 0 at first: 1 if all are finite; and the number of programs that have come, plus 2^16 for
    each that has found an element that is not. place: which pair.
    """
    state = states + 2 * place
    first = tl.program_id(0) * TILE + tl.arange(0, TILE)
    fine = tl.full([TILE], 1, tl.int32)
    start = 0
    while start + tl.program_id(0) * TILE < n:
        value = tl.load(gradient + start + first, mask=start + first < n, other=0.0).to(tl.float32)
        fine = fine & (tl.abs(value) < float("inf")).to(tl.int32)
        start += tl.num_programs(0) * TILE
    seen = tl.where(tl.min(fine) == 0, 65537, 1)
    seen += tl.atomic_add(state + 1, seen, sem="acq_rel", scope="gpu")
    if (seen & 65535) == tl.num_programs(0):
        if seen < 65536:
            tl.store(state, 1)
        else:
            at = tl.arange(0, TILE)
            start = 0
            while start < n:
                zeros = tl.zeros([TILE], tl.float32).to(gradient.dtype.element_ty)
                tl.store(gradient + start + at, zeros, mask=start + at < n)
                start += TILE


class Answers:
    """Memory on devices for the answers of many gradients: zeros, of which each place is used once.

    It is allocated for 1,024 gradients at a time, which saves a launch for each.
    """

    def __init__(self) -> None:
        self._rooms: dict[torch.cuda.Stream | None, Iterator[tuple[Tensor, int]]] = {}

    def next(self, device: torch.device) -> tuple[Tensor, int]:
        """Return memory on `device`, zeroed in the current stream, and a place in it."""
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        found = next(self._rooms.get(stream, iter(())), None)
        if found is None:
            room = torch.zeros(2 * PLACES, dtype=torch.int32, device=device)
            self._rooms[stream] = zip(repeat(room), range(PLACES), strict=False)
            found = next(self._rooms[stream])
        return found


def zero_unless_finite_(grad: Tensor, answers: Answers | None = None, tile: int = TILE) -> Tensor:
    """Fill `grad` with zeros if it holds NaN or infinity; return 1 if it held none, else 0: int32, 0-D, on its device.

    grad: contiguous, float32, float16 or bfloat16, of 1 to 2^30 elements. answers: holds the returned number. tile: how
    many elements are processed at once, a power of two.
    """
    states, place = (answers or Answers()).next(grad.device)
    programs = min(-(-grad.numel() // tile), PROGRAMS * at_once(grad.device))
    with on_device(grad):
        _zero_unless_finite[(programs,)](grad, states, place, grad.numel(), tile, **EXACT)
    return states[2 * place]
