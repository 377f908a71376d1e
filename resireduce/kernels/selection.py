"""The largest magnitudes of a tensor, on any device: of elements, of sums, and of norms."""

import ctypes
import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from resireduce.kernels.native import addresses, library, threads
from resireduce.kernels.norms import refuse_non_finite
from resireduce.kernels.on_gpu import in_triton
from resireduce.pieces import coprime_step, slices

# --- Elements that may be among the k largest, in memory of fixed size: found by NumPy, or by compiled C code ---


GROUP = 1 << 16
"""Elements that a thread scans before it stores, in four bytes, how many of them are candidates."""


def candidates_of(flat: Tensor, k: int, piece: int) -> "Candidates":
    """Return what finds the `k` largest of 1-D `flat`, on a CPU or without storage, `piece` elements at a time."""
    fits = flat.dtype == torch.float32 and flat.numel() < 1 << 31 and flat.is_contiguous() and not flat.is_meta
    found = library("candidates") if fits else None
    return Candidates(flat, k, piece) if found is None else CompiledCandidates(flat, k, piece, found)


def room_for(n: int, k: int, piece: int) -> int:
    """Return how many candidates are held for the `k` largest of `n` elements, scanned `piece` at a time."""
    return min(n, k + max(k // 4, piece))


class Candidates:
    """Elements of `flat` that may be among its `k` largest, from the last to the first, in memory of fixed size.

    Their magnitudes reach a border. When no room is left, only the k largest are kept, and the border rises to the
    smallest of them: an earlier element must exceed it, since of equal ones the last are chosen.

    Args:
        flat: 1-D, on a CPU or without storage.
        k: how many are chosen, fewer than there are elements.
        piece: how many elements are scanned at once.
    """

    def __init__(self, flat: Tensor, k: int, piece: int):
        n = flat.numel()
        self.k, self.count, self.room = k, 0, room_for(n, k, piece)
        self._flat, self._size = flat, min(n, piece)
        exact = torch.promote_types(flat.dtype, torch.float32)  # NumPy has no bfloat16
        self._indices = torch.empty(self.room, dtype=torch.int32 if n < 1 << 31 else torch.int64, device=flat.device)
        held = torch.empty(2 * self.room, dtype=exact, device=flat.device)
        marks = torch.empty(self.room, dtype=torch.bool, device=flat.device)
        self._held = held, marks
        if not flat.is_meta:
            self._places, self._marks, self._piece = self._indices.numpy(), marks.numpy(), held[self.room :]
            self._magnitudes, self._ordered = held.numpy()[: self.room], self._piece.numpy()  # never used together

    def look_through(self, border: float, added: Tensor | None = None, check: bool = False) -> None:
        """Scan all elements for those whose magnitude is `border` or more, after adding 1-D `added`, if any.

        check: raise FloatingPointError if one of them is then NaN or infinite.
        """
        if added is not None:
            self._flat.add_(added)
        if check:
            refuse_non_finite(self._flat)
        self._begin(border)
        self._scan()

    def _begin(self, border: float) -> None:
        """Forget all candidates, and look for magnitudes of `border` or more from now on."""
        self.count, self._border, self._exceeds = 0, border, False

    def _scan(self) -> None:
        """Scan all elements, from the last to the first; do nothing without storage."""
        for start in reversed(range(0, 0 if self._flat.is_meta else self._flat.numel(), self._size)):
            piece = self._flat[start : start + self._size]
            if not self._take_up(piece, start):
                self._compact()
                self._take_up(piece, start)

    def chosen(self, into: Tensor | None = None) -> Tensor:
        """Return the indices of the k largest, ascending: in `into`, or as a new tensor of int64."""
        if self.count > self.k:
            self._compact()
        if not self._flat.is_meta:
            self._places[: self.k] = self._places[: self.k][::-1].copy()
        into = torch.empty(self.k, dtype=torch.int64, device=self._flat.device) if into is None else into
        return into.copy_(self._indices[: self.k])

    def _take_up(self, part: Tensor, start: int) -> bool:
        """Add those elements of `part`, which begins at `start`, that reach the border; return False, and add none, if
        they exceed the room."""
        magnitudes = magnitudes_into(self._piece[: len(part)], part)
        compare = np.greater if self._exceeds else np.greater_equal
        found = np.flatnonzero(compare(magnitudes, self._border, out=self._marks[: magnitudes.size]))[::-1]
        stop = self.count + found.size
        if stop > self.room:
            return False
        self._magnitudes[self.count : stop] = magnitudes[found]
        self._places[self.count : stop] = found + start
        self.count = stop
        return True

    def _compact(self) -> None:
        """Keep the k largest candidates, and let the border rise to the smallest of them."""
        ordered = self._ordered[: self.count]
        np.copyto(ordered, self._magnitudes[: self.count])
        ordered.partition(self.count - self.k)
        self._border, self._exceeds = ordered[self.count - self.k], True
        self._keep_largest()
        self.count = self.k

    def _keep_largest(self) -> None:
        """Move those above the border, and the first of those at the border, to the front: k in all, in their order."""
        values, places = self._magnitudes[: self.count], self._places[: self.count]
        marks = np.greater(values, self._border, out=self._marks[: self.count])
        marks[np.flatnonzero(values == self._border)[: self.k - np.count_nonzero(marks)]] = True
        kept = np.flatnonzero(marks)
        values[: self.k], places[: self.k] = values[kept], places[kept]


class CompiledCandidates(Candidates):
    """`Candidates` of `flat`, `k` and `piece` whose inner loops are those of candidates.c, in the library `compiled`.

    For fewer than 2^31 contiguous float32 elements on a CPU. Threads scan groups in turn, each writing into its part of
    the room; the candidates are then put in order.
    """

    def __init__(self, flat: Tensor, k: int, piece: int, compiled: ctypes.CDLL):
        super().__init__(flat, k, piece)
        self._compiled, self._reaching = compiled, compiled.resireduce_reaching
        self._look = compiled.resireduce_look
        self._reaching.restype = self._look.restype = ctypes.c_int64

    def look_through(self, border: float, added: Tensor | None = None, check: bool = False) -> None:
        """Add `added`, if any, scan for `border`, and `check`, in one pass; if the room is exceeded, scan again."""
        n = self._flat.numel()
        fits = added is None or (added.dtype == self._flat.dtype and added.is_contiguous())
        if border < 0 or n > GROUP // 8 * self.room or not fits:
            super().look_through(border, added, check)
            return
        self._begin(border)
        addend = ctypes.c_void_p(None if added is None else added.data_ptr())
        # What is put in order lies where magnitudes are ordered later, and counts where marks are.
        (values, free), counts = addresses(self._flat, self._piece), ctypes.c_void_p(self._marks.ctypes.data)
        sizes = ctypes.c_int64(n), ctypes.c_float(border), threads(n), ctypes.c_int64(self.room), ctypes.c_int(check)
        self.count = self._look(values, addend, *sizes, *self._pointers(0), free, counts)
        if self.count < 0:  # there was no room, or something that is not finite
            super().look_through(border, None, check)

    def _scan(self) -> None:
        """Scan all elements, from the last to the first."""
        left = ctypes.c_int64(self._flat.numel())
        while True:
            border = self._border
            least = float(np.nextafter(np.float32(border), np.float32(math.inf))) if self._exceeds else border
            self.count += self._reaching(
                ctypes.c_void_p(self._flat.data_ptr()),
                ctypes.byref(left),
                ctypes.c_float(least),
                ctypes.c_int64(self.room - self.count),
                *self._pointers(self.count),
            )
            if not left.value:
                return
            self._compact()

    def _keep_largest(self) -> None:
        self._compiled.resireduce_keep(
            *self._pointers(0), ctypes.c_int64(self.count), ctypes.c_int64(self.k), ctypes.c_float(self._border)
        )

    def _pointers(self, first: int) -> tuple[ctypes.c_void_p, ...]:
        """Return pointers to the magnitudes and places of the candidates from number `first` on."""
        return tuple(ctypes.c_void_p(held.ctypes.data + 4 * first) for held in (self._magnitudes, self._places))


def magnitudes_into(out: Tensor, values: Tensor) -> np.ndarray:
    """Write the magnitudes of `values` into `out`, in its dtype; return it as an array."""
    if values.dtype == out.dtype:
        return np.abs(values.numpy(), out=out.numpy())
    return np.abs(out.copy_(values).numpy(), out=out.numpy())


# --- The k largest magnitudes, exact and with defined ties: of equal ones those with the highest indices are chosen ---
#
# On a CPU two scans are enough in nearly all cases: one of a sample, which estimates the border, and one of all
# elements, of which those that reach the border are candidates (as in DGC, Lin et al., ICLR 2018, but exact).


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
        from resireduce.kernels.gpu.bucket import select

        return select(flat, k)
    if flat.device.type not in ("cpu", "meta"):
        return by_keys(flat, k, piece or max(PIECE, -(-n // 64)))
    return found_in(flat, k, piece or piece_of(n)).chosen()


def largest_of_sum_(flat: Tensor, added: Tensor | None, k: int, check: bool, into: Tensor) -> Tensor:
    """Add 1-D `added`, if any, of the same dtype, to 1-D `flat` in place; write the indices of the `k` largest
    magnitudes to `into`, and return it.

    They are those of `largest_magnitudes`, ascending; `into` is 1-D, of any integer dtype that holds them. On a CPU
    compiled code reads each element once for all of this; on a GPU the first kernel of the selection forms the sum.

    check: raise FloatingPointError if an element of the sum is NaN or infinite.
    """
    if k < flat.numel() and not in_triton(flat) and flat.device.type in ("cpu", "meta"):
        return found_in(flat, k, piece_of(flat.numel()), added, check).chosen(into)
    if k < flat.numel() and added is not None and not check and in_triton(flat, added) and added.dtype == flat.dtype:
        from resireduce.kernels.gpu.bucket import select

        return into.copy_(select(flat, k, added))
    if added is not None:
        flat.add_(added)
    if check:
        refuse_non_finite(flat)
    return into.copy_(largest_magnitudes(flat, k))


def piece_of(n: int) -> int:
    """Return how many of `n` elements are scanned at once by default."""
    return min(PIECE, max(SMALLEST, n // PIECES))


def found_in(flat: Tensor, k: int, piece: int, added: Tensor | None = None, check: bool = False) -> Candidates:
    """Return at least `k` candidates of `flat`, on a CPU or without storage, by scans of `piece` elements at a time.

    added: 1-D, is added to `flat` first. check: as for `largest_of_sum_`.
    """
    border = _sampled_border(flat, *sample_of(flat.numel(), k, room_for(flat.numel(), k, piece)), added)
    candidates = candidates_of(flat, k, piece)
    candidates.look_through(border, added, check)
    if candidates.count < k:  # the sample was misleading: all elements are candidates
        candidates.look_through(-1.0)
    return candidates


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
