"""1-bit SGD: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training
of speech DNNs", Interspeech 2014."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.compressors.base import Inexact
from resireduce.kernels.signs import add_signs_, pack_signs
from resireduce.payload import Payload


@dataclass(frozen=True)
class OneBit(Inexact):
    """Sends one bit an element, and the two values that the bits stand for: the means of negative and of other
    elements.

    The means are those of the whole tensor, where the paper has a pair for each column of a matrix.
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

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the mean that each bit stands for to `dense`; return `dense`."""
        packed, means = payload.parts()
        return add_signs_(dense, packed, means[0], means[1], scale)
