"""What travels between ranks, and what is needed to decompress it."""

from collections.abc import Mapping, Sequence
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
    """1-D, all that travels. A single part keeps its own dtype; several are concatenated as uint8, the widest dtype
    first, so that each is aligned."""
    layout: tuple[tuple[torch.dtype, int], ...]
    """Dtype and number of elements of each part."""
    shape: torch.Size
    """Shape of the dense gradient."""
    dtype: torch.dtype
    """Dtype of the dense gradient."""
    source: tuple[str, int] | None = None
    """The name and step that seeded a random choice."""
    ragged: bool = False
    """Whether other ranks may have sent another number of elements."""
    known: Tensor | None = None
    """What all ranks know from earlier rounds, and is not sent again."""
    rounds_bytes: int = 0
    """Bytes that these rounds have sent, besides the buffer."""
    learnt: Mapping[str, Tensor] = field(default_factory=dict)
    """Values for the compressor's state that all ranks have found in these rounds, by their names there."""

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

        source: what seeded a random choice. ragged: other ranks may send another number of elements, the same in each
        part; the buffer is then not padded, so that the number follows from its size. known: what all ranks know from
        earlier rounds, which have sent `rounds_bytes`.
        """
        layout = tuple((part.dtype, part.numel()) for part in parts)
        if len(parts) == 1:
            return cls(parts[0], layout, like.shape, like.dtype, source, known=known, rounds_bytes=rounds_bytes)
        buffer, _ = unfilled([layout], parts[0].device, ragged)
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
        """Return the payload that another rank sent as `buffer`, in this layout except for the number of elements.

        It is copied if it is not aligned, after a payload of an uneven size.
        """
        if buffer is self.buffer:
            return self
        if len(self.layout) > 1 and buffer.storage_offset() % ALIGNMENT:
            buffer = buffer.clone()
        if not self.ragged:
            return self.holding(buffer)
        count = buffer.numel() // sum(dtype.itemsize for dtype, _ in self.layout)
        return replace(self, buffer=buffer, layout=tuple((dtype, count) for dtype, _ in self.layout))

    def holding(self, buffer: Tensor) -> "Payload":
        """Return the payload with another `buffer` in the same layout.

        It is `replace(self, buffer=buffer)`, which takes as long as a small addition, for each tensor in each step.
        """
        other = object.__new__(Payload)
        held = other.__dict__
        held.update(self.__dict__, buffer=buffer)
        held.pop("_views", None)
        return other

    @property
    def nbytes(self) -> int:
        """Bytes on the wire for one rank, in all rounds."""
        return self.buffer.nbytes + self.rounds_bytes


def unfilled(
    layouts: Sequence[tuple[tuple[torch.dtype, int], ...]], device: torch.device, ragged: bool = False
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return a buffer on `device` for payloads of several parts, and its part for each of the `layouts`: views.

    What pads them is zero. ragged: they are not padded.
    """
    sizes = [sum(dtype.itemsize * numel for dtype, numel in layout) for layout in layouts]
    padded = [size if ragged else -(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    buffer = torch.empty(sum(padded), dtype=torch.uint8, device=device)
    parts = buffer.split(padded) if len(padded) > 1 else [buffer]
    for part, size, whole in zip(parts, sizes, padded, strict=True):
        if whole > size:
            part[size:].zero_()
    return buffer, parts
