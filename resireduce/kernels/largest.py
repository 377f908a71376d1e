"""The k largest magnitudes, exact and with defined ties: of equal ones those of the highest indices come first.

On a CPU two looks at the elements are enough in nearly all cases: at a sample, which says about where the border lies,
and at all, of which only those that reach it are candidates (as in DGC, Lin et al., ICLR 2018, but exact).
"""

import numpy as np
import torch
from torch import Tensor

from resireduce.blocks import slices

PIECE = 1 << 16
"""Elements of a large tensor that are looked at at once on a CPU, small enough for its cache."""
SMALLEST = 1 << 12
"""Elements of a piece of a small tensor: what a selection holds beside it stays below the tensor itself."""
SAMPLES = 1 << 16
"""About how many elements of a large tensor are in its sample."""
SPARSEST = 16
"""At most one element of this many is in the sample of a small tensor."""
KEY_BITS = 32
"""Lower bits of a key, which tell of two equal magnitudes the one with the higher index."""


def largest_magnitudes(flat: Tensor, k: int, piece: int | None = None) -> Tensor:
    """Return indices (int64, ascending) of the `k` elements of 1-D `flat` with the largest magnitude.

    Of several that are equal, those of the highest indices: what is chosen does not depend on device, threads, or
    `piece`, the number of elements that are looked at at once. What is held beside `flat` is the same for all values:
    of the order of k + piece elements. NaN is not expected.
    """
    n = flat.numel()
    if k >= n:
        return torch.arange(n, device=flat.device)
    if flat.device.type not in ("cpu", "meta"):
        return by_keys(flat, k, piece or max(PIECE, -(-n // 64)))
    usual = n // 4 if n <= PIECE else min(PIECE, max(SMALLEST, n // 32))
    return by_candidates(flat, k, piece or max(SMALLEST, usual))


def by_candidates(flat: Tensor, k: int, piece: int) -> Tensor:
    """As `largest_magnitudes` of `flat`, `k` and `piece`, for a tensor of the CPU or without storage."""
    border = _sampled_border(flat, k)
    candidates = _Candidates(flat, k, piece)
    candidates.look_through(border)
    if candidates.count < k:  # the sample misled: all compete
        candidates.look_through(-1.0)
    return candidates.chosen()


class _Candidates:
    """Elements of `flat` that may be among its `k` largest, from the last to the first, in memory of fixed size.

    Their magnitudes reach a border. When there is no room for more, the k largest stay, and the border rises to the
    smallest of them: an element before them must exceed it, since of equal ones the last are chosen.
    """

    def __init__(self, flat: Tensor, k: int, piece: int):
        n = flat.numel()
        self.k, self.count, self.room = k, 0, min(n, k + max(k // 4, piece))
        self._flat, self._size = flat, min(n, piece)
        exact = torch.promote_types(flat.dtype, torch.float32)  # NumPy has no bfloat16
        self._indices = torch.empty(self.room, dtype=torch.int32 if n < 1 << 31 else torch.int64, device=flat.device)
        held = torch.empty(2 * self.room + self._size, dtype=exact, device=flat.device)
        marks = torch.empty(max(self.room, self._size), dtype=torch.bool, device=flat.device)
        self._held = held, marks
        if not flat.is_meta:
            self._places, self._marks, self._piece = self._indices.numpy(), marks.numpy(), held[2 * self.room :]
            self._magnitudes, self._ordered = held.numpy()[: self.room], held.numpy()[self.room : 2 * self.room]

    def look_through(self, border: float) -> None:
        """Look at all elements for those whose magnitude is `border` or more; nothing without storage."""
        self.count, self._border, self._exceeds = 0, border, False
        if not self._flat.is_meta:
            for start in reversed(range(0, self._flat.numel(), self._size)):
                part = self._flat[start : start + self._size]
                self._take_up(_magnitudes_into(self._piece[: len(part)], part), start)

    def _take_up(self, magnitudes: np.ndarray, start: int) -> None:
        """Add those of the `magnitudes`, of elements from `start` on, that reach the border."""
        found = self._reaching(magnitudes)
        if self.count + found.size > self.room:
            self._compact()
            found = self._reaching(magnitudes)
        stop = self.count + found.size
        self._magnitudes[self.count : stop] = magnitudes[found]
        self._places[self.count : stop] = found + start
        self.count = stop

    def chosen(self) -> Tensor:
        """Return the indices of the k largest: int64, ascending."""
        if self.count > self.k:
            self._compact()
        if not self._flat.is_meta:
            self._places[: self.k] = self._places[: self.k][::-1].copy()
        return torch.empty(self.k, dtype=torch.int64, device=self._flat.device).copy_(self._indices[: self.k])

    def _reaching(self, magnitudes: np.ndarray) -> np.ndarray:
        compare = np.greater if self._exceeds else np.greater_equal
        return np.flatnonzero(compare(magnitudes, self._border, out=self._marks[: magnitudes.size]))[::-1]

    def _compact(self) -> None:
        """Keep the k largest candidates, and let the border rise to the smallest of them."""
        values, places = self._magnitudes[: self.count], self._places[: self.count]
        ordered, marks = self._ordered[: self.count], self._marks[: self.count]
        np.copyto(ordered, values)
        ordered.partition(self.count - self.k)
        border = ordered[self.count - self.k]
        np.greater(values, border, out=marks)
        marks[np.flatnonzero(values == border)[: self.k - np.count_nonzero(marks)]] = True
        kept = np.flatnonzero(marks)
        values[: self.k], places[: self.k] = values[kept], places[kept]
        self.count, self._border, self._exceeds = self.k, border, True


def _magnitudes_into(out: Tensor, values: Tensor) -> np.ndarray:
    """Write the magnitudes of `values` into `out`, in its dtype; return it as an array."""
    if values.dtype == out.dtype:
        return np.abs(values.numpy(), out=out.numpy())
    return np.abs(out.copy_(values).numpy(), out=out.numpy())


def _sampled_border(flat: Tensor, k: int) -> float:
    """Return a magnitude that the `k` largest reach very probably, and not many others: four standard errors low.

    It is -1 where no border can be told.
    """
    thinned = flat[:: max(SPARSEST, flat.numel() // SAMPLES) | 1]  # odd: it meets all columns of most matrices
    exact = torch.promote_types(flat.dtype, torch.float32)
    held = torch.empty(thinned.shape, dtype=exact, device=flat.device)
    if held.is_meta:
        return -1.0
    sample = _magnitudes_into(held, thinned)
    expected = k / flat.numel() * sample.size
    wanted = int(expected + 4 * expected**0.5 + 4)
    if wanted >= sample.size:
        return -1.0
    sample.partition(sample.size - wanted)
    return float(sample[sample.size - wanted])


def by_keys(flat: Tensor, k: int, piece: int) -> Tensor:
    """As `largest_magnitudes` of `flat`, `k` and `piece`, without asking the device for a value.

    One number an element orders all, ties too. Holds the best k keys so far, and lets those of each further piece
    compete with them.
    """
    if flat.dtype == torch.float64 or flat.numel() > 1 << KEY_BITS:
        return flat.abs().sort(stable=True).indices[-k:].sort().values
    best = torch.empty(0, dtype=torch.int64, device=flat.device)
    for part in slices(flat.numel(), piece):
        keys = torch.cat((best, _keys(flat[part], part.start)))
        best = torch.topk(keys, min(k, keys.numel()), sorted=False).values
    return best.bitwise_and_((1 << KEY_BITS) - 1).sort().values


def _keys(values: Tensor, first: int) -> Tensor:
    """Return numbers (int64) in the order of the magnitudes, equal ones in that of their indices, `first` and on."""
    bits = values.abs().view(torch.int32 if values.element_size() == 4 else torch.int16).long()
    places = torch.arange(first, first + values.numel(), device=values.device)
    return bits.bitwise_left_shift_(KEY_BITS).add_(places)
