"""Signs in one bit: with majority votes, or scaled, with error feedback."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor, Momentum, number
from resireduce.core.messages import Payload
from resireduce.kernels.codes import BYTE, octets, pack_bits, unpack_bits
from resireduce.pieces import pieces


def pack_signs(flat: Tensor) -> Tensor:
    """Return ceil(n / 8) bytes for 1-D `flat`, whose bits are 1 where it is negative; zeros of either sign are 0."""
    packed = torch.empty(-(-flat.numel() // BYTE), dtype=torch.uint8, device=flat.device)
    for piece in pieces(flat.numel(), BYTE):
        packed[octets(piece)] = pack_bits(flat[piece] < 0)
    return packed


@dataclass(frozen=True)
class Signs(Compressor):
    """The common base of compressors that send a bit for each element, and one number, which bits negate, or two."""

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        packed, numbers = payload.parts()
        numbers = numbers.to(dense.dtype)
        plus, minus = numbers if len(numbers) == 2 else (numbers, -numbers)
        flat = dense.view(-1)
        for piece in pieces(flat.numel(), BYTE):
            negative = unpack_bits(packed[octets(piece)], piece.stop - piece.start).bool()
            flat[piece].add_(torch.where(negative, minus, plus), alpha=scale)
        return dense


@dataclass(frozen=True)
class SignSGD(Signs):
    """Sends the sign of every element, in one bit; what comes back is what more ranks sent, +1 or -1; +1 of as many.

    Zeros count as positive; a rank whose tensor is all zeros has no vote, and if no rank votes, zeros come back. The
    paper keeps nothing of what is not sent: scheme "none". What is sent dense is averaged, as usual.

    Source: SignSGD with majority vote: Bernstein et al., "signSGD with majority vote is communication efficient and
    fault tolerant", ICLR 2019.
    """

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return signs, eight per byte, and a byte that is 1 if this rank votes."""
        flat = grad.view(-1)
        return Payload.pack(pack_signs(flat), flat.any().view(1).to(torch.uint8), like=grad)

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


@dataclass(frozen=True)
class Signum(SignSGD):
    """Sends the sign of every element's momentum, formed on each rank, in one bit; the majority's comes back, as with
    signSGD.

    Momentum is u <- m u + g; the paper's, m u + (1 - m) g, has the same signs. It replaces the optimizer's, which must
    be 0. For tensors that are sent dense, the momenta are averaged.

    Source: Signum with majority vote: Bernstein et al., "signSGD with majority vote is communication efficient and
    fault tolerant", ICLR 2019, algorithm 1.
    """

    momentum_factor: float = number(0.9, below=1)
    """m, with 0 <= m < 1; 0 is signSGD."""

    @property
    def momentum(self) -> Momentum | None:
        return Momentum(self.momentum_factor, masking=False) if self.momentum_factor else None


@dataclass(frozen=True)
class EFSignSGD(Signs):
    """Sends the sign of every element, in one bit, and the mean of all magnitudes: |g|_1 / n x sign(g), algorithm 1.

    Zeros count as positive. What the ranks send is averaged (the released benchmark codes sum it).

    Source: EF-SignSGD: Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", ICML
    2019.
    """

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return signs, eight per byte, and the mean magnitude, in float32 (float64 for float64)."""
        flat = grad.view(-1)
        mean = torch.zeros(1, dtype=torch.float64, device=flat.device)
        for piece in pieces(flat.numel()):
            mean += flat[piece].abs().double().div_(flat.numel()).sum()
        mean.clamp_(max=torch.finfo(mean.dtype).max)  # rounding up may have taken it beyond
        return Payload.pack(pack_signs(flat), mean.to(torch.promote_types(flat.dtype, torch.float32)), like=grad)


@dataclass(frozen=True)
class OneBit(Signs):
    """Sends one bit an element, and the two values that the bits stand for: the means of negative and of other
    elements.

    The means are those of the whole tensor, where the paper has a pair for each column of a matrix.

    Source: 1-bit SGD: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed
    training of speech DNNs", Interspeech 2014.
    """

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return bits, eight per byte, and two means, in float32 (float64 for float64); 0 for no elements."""
        flat = grad.view(-1)
        sums = torch.zeros(2, dtype=torch.float64, device=flat.device)
        counts = torch.zeros(2, dtype=torch.float64, device=flat.device)
        for piece in pieces(flat.numel()):
            values = flat[piece].double() / flat.numel()
            sums += torch.stack((values.clamp(min=0).sum(), values.clamp(max=0).sum()))
            below = (values < 0).sum()
            counts += torch.stack((len(values) - below, below))
        largest = torch.finfo(sums.dtype).max  # beyond which rounding up may take them
        means = sums.div_(counts.clamp_(min=1).div_(flat.numel())).clamp_(-largest, largest)
        return Payload.pack(pack_signs(flat), means.to(torch.promote_types(flat.dtype, torch.float32)), like=grad)
