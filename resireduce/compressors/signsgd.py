"""SignSGD with majority vote: Bernstein et al., "signSGD with majority vote is communication efficient and fault
tolerant", ICLR 2019."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.compressors.base import Inexact
from resireduce.kernels.bits import BYTE, octets, unpack_bits
from resireduce.kernels.signs import add_signs_, pack_signs
from resireduce.payload import Payload


@dataclass(frozen=True)
class SignSGD(Inexact):
    """Sends the sign of every element, in one bit; what comes back is what more ranks sent, +1 or -1; +1 of as many.

    Zeros count as positive; a rank whose tensor is all zeros has no vote, and if no rank votes, zeros come back. The
    paper keeps nothing of what is not sent: scheme "none". What is sent dense is averaged, as usual.
    """

    source_feeds_back: ClassVar[bool] = False

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return signs, eight per byte, and a byte that is 1 if this rank votes."""
        flat = grad.view(-1)
        votes = torch.zeros(1, dtype=torch.bool, device=flat.device)
        for piece in pieces(flat.numel()):
            votes |= flat[piece].any()
        return Payload.pack(pack_signs(flat), votes.to(torch.uint8), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x sign to `dense`, of one rank alone; return `dense`."""
        packed, votes = payload.parts()
        one = votes.to(dense.dtype)
        return add_signs_(dense, packed, one, -one, scale)

    def combine_(self, dense: Tensor, payloads: Iterable[Payload], scale: float) -> Tensor:
        """Overwrite `dense` with the majority vote of the ranks, counted in integers; return it."""
        ballots = [payload.parts() for payload in payloads]
        flat = dense.view(-1)
        any_vote = torch.stack([votes for _, votes in ballots]).amax().to(dense.dtype)
        for piece in pieces(flat.numel(), BYTE):
            count = torch.zeros(piece.stop - piece.start, dtype=torch.int16, device=flat.device)
            for packed, votes in ballots:
                signs = 1 - 2 * unpack_bits(packed[octets(piece)], len(count)).to(torch.int16)
                count += signs * votes
            flat[piece] = torch.where(count >= 0, any_vote, -any_vote)
        return dense
