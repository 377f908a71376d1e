"""Payloads of several tensors concatenated in one buffer, so that one gather brings them all."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from resireduce.payload import ALIGNMENT, Payload
from resireduce.sending.message import Shared

SIZE_BYTES = 8
"""Bytes of the number that gives the length of a payload, where lengths may differ between ranks."""


def packed_nbytes(sizes: Sequence[int], equal_sizes: bool) -> int:
    """Return the bytes of one rank's message of payloads with `sizes` bytes each.

    A single payload travels as it is. Several are aligned and, without `equal_sizes`, preceded by their sizes.
    """
    if len(sizes) == 1:
        return sizes[0]
    return sum(map(_aligned, sizes)) + (0 if equal_sizes else SIZE_BYTES * len(sizes))


class Packed:
    """This rank's payloads as one message.

    Args:
        payloads: two or more, on one device, in an order that all ranks share.
        equal_sizes: whether each has the same size on all ranks; else the sizes travel in front.
    """

    def __init__(self, payloads: Sequence[Payload], equal_sizes: bool):
        self._sizes = [payload.buffer.nbytes for payload in payloads]
        self._dtypes, self._equal_sizes = [payload.buffer.dtype for payload in payloads], equal_sizes
        device = payloads[0].buffer.device
        self.buffer = torch.zeros(packed_nbytes(self._sizes, equal_sizes), dtype=torch.uint8, device=device)
        """What travels: 1-D, uint8."""
        if not equal_sizes:
            self._header(self.buffer).copy_(torch.tensor(self._sizes, device=device))
        own = self._cut(self.buffer, self._sizes)
        self.payloads = [replace(payload, buffer=part) for payload, part in zip(payloads, own, strict=True)]
        """The payloads, which now use the memory of the message."""
        for payload, part in zip(payloads, own, strict=True):
            part.copy_(payload.buffer)

    def unpack(self, message: Tensor) -> list[Tensor]:
        """Return the payloads' buffers in the `message` of a rank, 1-D, uint8: views of it."""
        known = self._equal_sizes or message.is_meta
        return self._cut(message, self._sizes if known else self._header(message).tolist())

    def _header(self, message: Tensor) -> Tensor:
        return message[: SIZE_BYTES * len(self._sizes)].view(torch.int64)

    def _cut(self, message: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        start = 0 if self._equal_sizes else SIZE_BYTES * len(sizes)
        parts = []
        for size, dtype in zip(sizes, self._dtypes, strict=True):
            parts.append(message[start : start + size].view(dtype))
            start += _aligned(size)
        return parts


class FromEach:
    """The handle of one payload of several in a gathered message: its buffer in each rank's message.

    Args:
        unpacked: the buffers of all payloads, for each rank.
        number: which of the payloads this is, from 0.
    """

    def __init__(self, unpacked: Shared[list[list[Tensor]]], number: int):
        self._unpacked, self._number = unpacked, number

    def wait(self) -> list[Tensor]:
        """Return the payload's buffers, 1-D, one from each rank, in rank order."""
        return [parts[self._number] for parts in self._unpacked.wait()]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
