"""A large message in parts: what all ranks send of some elements of a tensor is gathered, used, and freed."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Handle
from resireduce.compressors.base import Compressor
from resireduce.payload import ALIGNMENT, Payload
from resireduce.sending.message import Shared

BINS = 256
"""Number of ranges of elements in which ranks count, at once, what they send."""
AHEAD = 2
"""Number of parts alive at once: one is gathered while the one before it is used."""
Gathered = Handle[Sequence[Tensor]]


@dataclass(frozen=True)
class _Range:
    """The elements of a part: their places in this rank's payload, the most that any rank has, and where they end."""

    first: int
    last: int
    most: int
    stop: int


@dataclass(frozen=True)
class _Told:
    """Where ranges begin and end, among a tensor's elements and in this rank's payload, and all ranks' counts."""

    borders: list[int]
    places: list[int]
    handle: Gathered

    def counts(self) -> Tensor | None:
        """Return the number of elements in each range, and whether there is a gradient: int64, one row per rank.

        None without storage.
        """
        rows = self.handle.wait()
        return None if rows[0].is_meta else torch.stack(list(rows)).cpu().long()


@dataclass(frozen=True)
class PartedMessage:
    """A payload on its way to all ranks in parts."""

    name: str
    """Name of its tensor."""
    payload: Payload
    compressor: Compressor
    parts: "Parts"


class Parts:
    """All ranks' payloads of one tensor, gathered one range of its elements after the other.

    Ranks first tell one another how many elements they send of each of BINS ranges. Neighbouring ranges make a part as
    long as it takes no more than its share of `most_bytes`; a range that takes more by itself is divided into BINS
    again. All ranks find the same parts. A part has one size on all ranks: a rank with fewer elements fills it up with
    zeros at an index that no tensor has.

    Args:
        name: name of the collectives, to which a number is added.
        payload: values and ascending indices, as a compressor that `divides` makes them.
        communicator: the ranks.
        most_bytes: most bytes of the parts that are alive, of all ranks together.
        present: whether this rank has a gradient; without one it sends zeros.
    """

    def __init__(self, name: str, payload: Payload, communicator: Communicator, most_bytes: int, present: bool):
        self._name, self._payload, self._communicator, self._present = name, payload, communicator, present
        self._values, self._indices = payload.parts()
        self._each = sum(dtype.itemsize for dtype, _ in payload.layout)
        self._most = max(1, most_bytes // (AHEAD * communicator.world_size * self._each))
        self._launched = self._used = 0
        self._told: _Told | None = self._tell(0, payload.shape.numel())
        self._anywhere = True
        self._ranges: deque[_Range] = deque()
        self._held: deque[tuple[int, Gathered]] = deque()

    @property
    def somewhere(self) -> bool:
        """Whether any rank has a gradient. Waits for all ranks' counts."""
        self._learn()
        return self._anywhere

    def _learn(self) -> None:
        """Find the parts from all ranks' counts, which are exchanged once."""
        if self._told is None:
            return
        told, self._told = self._told, None
        counts = told.counts()
        self._anywhere = counts is None or bool(counts[:, -1].any())
        self._ranges.extend(self._even() if counts is None else self._found(told, counts))

    def through(self, stop: int, use: Callable[[Gathered], None]) -> None:
        """Call `use` for each part with elements from where the last call stopped to `stop`, ascending.

        It gets the handle of all ranks' buffers, for `received`, and must not keep it. The next part is then under way.
        """
        while self._used < stop and self._fill():
            end = self._held[0][0]
            use(self._held[0][1])
            if end > stop:
                return
            self._used = end
            self._held.popleft()

    def received(self, buffer: Tensor) -> Payload:
        """Return the payload of a part from a rank's `buffer`, whose elements can be added in parts."""
        count = buffer.numel() // self._each
        layout = tuple((dtype, count) for dtype, _ in self._payload.layout)
        return Payload(buffer, layout, self._payload.shape, self._payload.dtype)

    def _fill(self) -> bool:
        """Launch parts until AHEAD of them are held; return False if none are left."""
        self._learn()
        while len(self._held) < AHEAD and self._ranges:
            found = self._ranges.popleft()
            self._held.append((found.stop, self._gather(found)))
        return bool(self._held)

    def _gather(self, found: _Range) -> Gathered:
        size = -(-found.most // ALIGNMENT) * ALIGNMENT
        payload = self.received(torch.zeros(size * self._each, dtype=torch.uint8, device=self._indices.device))
        (values, indices), count = payload.parts(), found.last - found.first
        values[:count] = self._values[found.first : found.last]
        indices[count:] = torch.iinfo(indices.dtype).max
        indices[:count] = self._indices[found.first : found.last]
        return self._launch(payload.buffer)

    def _launch(self, tensor: Tensor) -> Gathered:
        self._launched += 1
        return Shared(self._communicator.all_gather(tensor, f"{self._name}@{self._launched}"))

    def _tell(self, start: int, stop: int) -> _Told:
        """Tell the others how many elements each range from `start` to `stop` has, and whether there is a gradient."""
        borders = [start + (stop - start) * number // BINS for number in range(BINS + 1)]
        told = torch.zeros(BINS + 1, dtype=torch.int32, device=self._indices.device)
        places = [0] * len(borders)
        if not told.is_meta:
            asked = torch.tensor(borders, dtype=self._indices.dtype, device=told.device)
            found = torch.searchsorted(self._indices, asked)
            told[:-1], told[-1], places = found.diff(), self._present, found.tolist()
        return _Told(borders, places, self._launch(told))

    def _found(self, told: _Told, counts: Tensor) -> Iterator[_Range]:
        """Yield the parts of the elements that ranks have `told` of; nothing for ranges without elements."""
        before = torch.nn.functional.pad(counts[:, :-1].cumsum(1), (1, 0)).tolist()
        first = 0
        while first < BINS:
            last = min(bisect_right(sums, sums[first] + self._most) for sums in before) - 1
            if most := max(sums[last] - sums[first] for sums in before):
                yield _Range(told.places[first], told.places[last], most, told.borders[last])
            if last == first:  # this range alone takes more
                last += 1
                more = self._tell(told.borders[first], told.borders[last])
                found = more.counts()
                assert found is not None
                yield from self._found(more, found)
            first = last

    def _even(self) -> Iterator[_Range]:
        """Yield the parts of a payload without storage, whose elements are assumed to be spread evenly."""
        held, stop = self._indices.numel(), self._payload.shape.numel()
        for first in range(0, held, self._most):
            last = min(first + self._most, held)
            yield _Range(first, last, last - first, stop * last // held)
