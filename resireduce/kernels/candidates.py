"""Elements that may be among the k largest, in memory of fixed size: found by NumPy, or by compiled C code."""

import ctypes
import math

import numpy as np
import torch
from torch import Tensor

from resireduce.kernels.native import addresses, library, threads
from resireduce.kernels.norms import refuse_non_finite

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
        self.begin(border)
        self.look_at(self._flat, 0)

    def begin(self, border: float) -> None:
        """Forget all candidates, and look for magnitudes of `border` or more from now on."""
        self.count, self._border, self._exceeds = 0, border, False

    def look_at(self, part: Tensor, first: int) -> None:
        """Scan 1-D `part`, the elements from number `first` up to those scanned before; do nothing without storage."""
        for start in reversed(range(0, 0 if part.is_meta else part.numel(), self._size)):
            piece = part[start : start + self._size]
            if not self._take_up(piece, first + start):
                self._compact()
                self._take_up(piece, first + start)

    def chosen(self) -> Tensor:
        """Return the indices of the k largest: int64, ascending."""
        if self.count > self.k:
            self._compact()
        if not self._flat.is_meta:
            self._places[: self.k] = self._places[: self.k][::-1].copy()
        return torch.empty(self.k, dtype=torch.int64, device=self._flat.device).copy_(self._indices[: self.k])

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
        self.begin(border)
        addend = ctypes.c_void_p(None if added is None else added.data_ptr())
        # What is put in order lies where magnitudes are ordered later, and counts where marks are.
        (values, free), counts = addresses(self._flat, self._piece), ctypes.c_void_p(self._marks.ctypes.data)
        sizes = ctypes.c_int64(n), ctypes.c_float(border), threads(n), ctypes.c_int64(self.room), ctypes.c_int(check)
        self.count = self._look(values, addend, *sizes, *self._pointers(0), free, counts)
        if self.count < 0:  # there was no room, or something that is not finite
            super().look_through(border, None, check)

    def look_at(self, part: Tensor, first: int) -> None:
        """Scan contiguous 1-D `part`, the elements from number `first` up to those scanned before."""
        left = ctypes.c_int64(part.numel())
        while True:
            border = self._border
            least = float(np.nextafter(np.float32(border), np.float32(math.inf))) if self._exceeds else border
            self.count += self._reaching(
                ctypes.c_void_p(part.data_ptr()),
                ctypes.byref(left),
                ctypes.c_float(least),
                ctypes.c_int64(first),
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
