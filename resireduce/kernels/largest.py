"""The k largest magnitudes, exact and with defined ties: of equal ones those with the highest indices are chosen.

On a CPU two scans are enough in nearly all cases: one of a sample, which estimates the border, and one of all elements,
of which those that reach the border are candidates (as in DGC, Lin et al., ICLR 2018, but exact).
"""

import ctypes
from functools import cache

import torch
from torch import Tensor

from resireduce.blocks import coprime_step, slices
from resireduce.kernels.candidates import candidates_of, magnitudes_into, room_for
from resireduce.kernels.native import addresses, library
from resireduce.kernels.norms import refuse_non_finite
from resireduce.kernels.on_gpu import in_triton

PIECE = 1 << 16
"""Elements of a large tensor that are scanned at once on a CPU, small enough for its cache."""
SMALLEST, PIECES = 1 << 11, 128
"""Elements of a piece of a small tensor, and number of pieces of a tensor of middling size: a selection then needs
extra memory of some per cent of the tensor."""
SAMPLES = 1 << 16
"""About how many elements of a large tensor are in its sample."""
SPARSEST = 16
"""At most one element of this many is in the sample of a small tensor."""
KEY_BITS = 32
"""Lower bits of a key, which tell of two equal magnitudes the one with the higher index."""


def largest_magnitudes(flat: Tensor, k: int, piece: int | None = None) -> Tensor:
    """Return indices (int64, ascending) of the `k` elements of 1-D `flat` with the largest magnitude.

    Of equal ones those with the highest indices are chosen, whatever the device, the number of threads, or `piece`, the
    number of elements that are scanned at once. Extra memory is of the order of k + piece elements, for any values.
    There must be no NaN.
    """
    n = flat.numel()
    if k >= n:
        return torch.arange(n, device=flat.device)
    if in_triton(flat):
        from resireduce.kernels.gpu.select import select

        return select(flat, k)
    if flat.device.type not in ("cpu", "meta"):
        return by_keys(flat, k, piece or max(PIECE, -(-n // 64)))
    return by_candidates(flat, k, piece or piece_of(n))


def largest_of_sum_(flat: Tensor, added: Tensor | None, k: int, check: bool = False) -> Tensor:
    """Add 1-D `added`, if any, of the same dtype, to 1-D `flat` in place; return the indices of the `k` largest
    magnitudes.

    They are those of `largest_magnitudes`: int64, ascending. On a CPU compiled code reads each element once for all of
    this; on a GPU the first kernel of the selection forms the sum.

    check: raise FloatingPointError if an element of the sum is NaN or infinite.
    """
    if k < flat.numel() and not in_triton(flat) and flat.device.type in ("cpu", "meta"):
        return by_candidates(flat, k, piece_of(flat.numel()), added, check)
    if k < flat.numel() and added is not None and not check and in_triton(flat, added) and added.dtype == flat.dtype:
        from resireduce.kernels.gpu.select import select

        return select(flat, k, added)
    if added is not None:
        flat.add_(added)
    if check:
        refuse_non_finite(flat)
    return largest_magnitudes(flat, k)


def piece_of(n: int) -> int:
    """Return how many of `n` elements are scanned at once by default."""
    return min(PIECE, max(SMALLEST, n // PIECES))


def by_candidates(flat: Tensor, k: int, piece: int, added: Tensor | None = None, check: bool = False) -> Tensor:
    """Return what `largest_magnitudes` does for `flat`, `k` and `piece`: for a tensor on a CPU or without storage.

    added: 1-D, is added to `flat` first. check: as for `largest_of_sum_`.
    """
    border = _sampled_border(flat, *sample_of(flat.numel(), k, room_for(flat.numel(), k, piece)), added)
    candidates = candidates_of(flat, k, piece)
    candidates.look_through(border, added, check)
    if candidates.count < k:  # the sample was misleading: all elements are candidates
        candidates.look_through(-1.0)
    return candidates.chosen()


@cache
def sample_of(n: int, k: int, room: int) -> tuple[int, int]:
    """Return the step of a sample, of every step-th of `n` elements, and the border's rank in it, from the largest.

    The `k` largest of all reach the border very probably, and few others do: it is four standard errors low. The sample
    is as sparse as `room` for the elements that reach the border allows, and no sparser than pays: each element of the
    sample is read by itself, and so is each that reaches the border. If the rank is beyond the sample's end, there is
    no border.
    """
    step = coprime_step(n, max(SPARSEST, n // SAMPLES, n // (3 * room) + 1))
    while n // step > max(2048, 4 * (k * step) ** 0.5):
        sparser = coprime_step(n, step + step // 4)
        if _most_reaching(k, sparser) > room:
            break
        step = sparser
    return step, _place(k / n * -(-n // step))


def _place(expected: float) -> int:
    """Return the rank of the border in a sample that has `expected` of the largest elements."""
    return int(expected + 4 * expected**0.5 + 4)


def _most_reaching(k: int, step: int) -> float:
    """Return an upper bound of how many elements reach the border found in a sample of every `step`-th element."""
    place = _place(k / step)
    most: float = step * (place + 4 * place**0.5)
    return most


def _sampled_border(flat: Tensor, step: int, wanted: int, added: Tensor | None) -> float:
    """Return the `wanted`-th largest magnitude of every `step`-th element of `flat` + `added`; -1 for too few."""
    thinned = flat[::step]
    exact = torch.promote_types(flat.dtype, torch.float32)
    held = torch.empty(thinned.shape, dtype=exact, device=flat.device)
    if held.is_meta:
        return -1.0
    sample = magnitudes_into(held, thinned if added is None else torch.add(thinned, added[::step], out=held))
    if wanted >= sample.size:
        return -1.0
    sample.partition(sample.size - wanted)
    return float(sample[sample.size - wanted])


def by_keys(flat: Tensor, k: int, piece: int) -> Tensor:
    """Return what `largest_magnitudes` does for `flat`, `k` and `piece`, without reading a value back from the device.

    Each element has a key, one number, by which all are ordered, ties too. The largest k keys so far are held, and
    compared with those of each further piece.
    """
    if flat.dtype == torch.float64 or flat.numel() > 1 << KEY_BITS:
        return flat.abs().sort(stable=True).indices[-k:].sort().values
    best = torch.empty(0, dtype=torch.int64, device=flat.device)
    for part in slices(flat.numel(), piece):
        keys = torch.cat((best, _keys(flat[part], part.start)))
        best = torch.topk(keys, min(k, keys.numel()), sorted=False).values
    return best.bitwise_and_((1 << KEY_BITS) - 1).sort().values


def largest_norms(norms: Tensor, count: int) -> Tensor:
    """Return which `count` of the 1-D `norms`, none of them negative, are the largest: int32, ascending.

    Of equal ones those with the highest indices are chosen, as by `largest_magnitudes`, on every device.
    """
    compiled = library("submatrix") if norms.is_cpu and norms.dtype == torch.float32 and norms.is_contiguous() else None
    if compiled is None:
        found = largest_magnitudes(norms, count) if in_triton(norms) else by_keys(norms, count, norms.numel())
        return found.to(torch.int32)
    chosen = norms.new_empty(count, dtype=torch.int32)
    place, into = addresses(norms, chosen)
    compiled.resireduce_largest_norms(place, ctypes.c_int64(norms.numel()), ctypes.c_int64(count), into)
    return chosen


def _keys(values: Tensor, first: int) -> Tensor:
    """Return numbers (int64) in the order of the magnitudes, equal ones in that of their indices, `first` and on."""
    bits = values.abs().view(torch.int32 if values.element_size() == 4 else torch.int16).long()
    places = torch.arange(first, first + values.numel(), device=values.device)
    return bits.bitwise_left_shift_(KEY_BITS).add_(places)
