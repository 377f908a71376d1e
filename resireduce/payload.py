"""What travels between ranks, and what is needed to undo it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

ALIGNMENT = 8
"""A packed message is a multiple of this many bytes, so each rank's share of a gathered buffer suits any dtype."""


@dataclass(frozen=True)
class Payload:
    """The message of one tensor: one buffer, so that values and indices need one collective and not two."""

    buffer: Tensor
    """1-D, all that travels. A single part is as it is, in its own dtype; several lie behind one another as uint8, the
    widest dtype first, so that each lies aligned."""
    layout: tuple[tuple[torch.dtype, int], ...]
    """Dtype and number of elements of each part."""
    shape: torch.Size
    """Shape of the dense gradient."""
    dtype: torch.dtype
    """Dtype of the dense gradient."""
    source: tuple[str, int] | None = None
    """What a random choice was made from, name and step."""
    ragged: bool = False
    """Whether other ranks may have sent another number of elements."""
    known: Tensor | None = None
    """What all ranks know by rounds that came before, and is not sent again."""
    rounds_bytes: int = 0
    """Bytes that these rounds have sent, beside the buffer."""
    learnt: Mapping[str, Tensor] = field(default_factory=dict)
    """What all ranks have found in these rounds of a compressor's state, by its names there."""

    @classmethod
    def pack(
        cls,
        *parts: Tensor,
        like: Tensor,
        source: tuple[str, int] | None = None,
        ragged: bool = False,
        known: Tensor | None = None,
        rounds_bytes: int = 0,
    ) -> "Payload":
        """Copy 1-D `parts` of gradient `like` into one buffer; a single part is taken as it is, without a copy.

        source: what a random choice was made from. ragged: other ranks may send another number of elements, the same of
        each part; the buffer is not padded then, so that the number follows from its size. known: what all ranks know
        by rounds that came before, which have sent `rounds_bytes`.
        """
        layout = tuple((part.dtype, part.numel()) for part in parts)
        if len(parts) == 1:
            return cls(parts[0], layout, like.shape, like.dtype, source, known=known, rounds_bytes=rounds_bytes)
        nbytes = sum(part.nbytes for part in parts)
        size = nbytes if ragged else -(-nbytes // ALIGNMENT) * ALIGNMENT
        buffer = torch.empty(size, dtype=torch.uint8, device=parts[0].device)
        buffer[nbytes:].zero_()
        payload = cls(buffer, layout, like.shape, like.dtype, source, ragged, known, rounds_bytes)
        for target, part in zip(payload.parts(), parts, strict=True):
            target.copy_(part)
        return payload

    def parts(self) -> tuple[Tensor, ...]:
        """Return the parts as views of the buffer, in the order in which they were packed."""
        return self._views

    @cached_property
    def _views(self) -> tuple[Tensor, ...]:
        if len(self.layout) == 1:
            return (self.buffer,)
        views, start = {}, 0
        for index in sorted(range(len(self.layout)), key=lambda i: -self.layout[i][0].itemsize):
            dtype, numel = self.layout[index]
            stop = start + numel * dtype.itemsize
            views[index] = self.buffer[start:stop].view(dtype)
            start = stop
        return tuple(views[index] for index in range(len(views)))

    def received(self, buffer: Tensor) -> "Payload":
        """Return the payload that another rank sent as `buffer`, in this one's layout but for the number of elements.

        Copied where it does not begin aligned, behind a payload of an uneven size.
        """
        if len(self.layout) > 1 and buffer.storage_offset() % ALIGNMENT:
            buffer = buffer.clone()
        if not self.ragged:
            return replace(self, buffer=buffer)
        count = buffer.numel() // sum(dtype.itemsize for dtype, _ in self.layout)
        return replace(self, buffer=buffer, layout=tuple((dtype, count) for dtype, _ in self.layout))

    @property
    def nbytes(self) -> int:
        """Bytes on the wire for one rank, in all rounds."""
        return self.buffer.nbytes + self.rounds_bytes
