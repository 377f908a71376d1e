"""EF-SignSGD: Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.compressors.base import Inexact
from resireduce.kernels.signs import add_signs_, pack_signs
from resireduce.payload import Payload


@dataclass(frozen=True)
class EFSignSGD(Inexact):
    """Sends the sign of every element, in one bit, and the mean of all magnitudes: |g|_1 / n x sign(g), algorithm 1.

    Zeros count as positive. What the ranks send is averaged (the released benchmark codes sum it).
    """

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return signs, eight per byte, and the mean magnitude, in float32 (float64 for float64)."""
        flat = grad.view(-1)
        mean = torch.zeros(1, dtype=torch.float64, device=flat.device)
        for piece in pieces(flat.numel()):
            mean += flat[piece].abs().double().div_(flat.numel()).sum()
        mean.clamp_(max=torch.finfo(mean.dtype).max)  # rounding up may have taken it beyond
        return Payload.pack(pack_signs(flat), mean.to(torch.promote_types(flat.dtype, torch.float32)), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x sign x mean magnitude to `dense`; return `dense`."""
        packed, mean = payload.parts()
        return add_signs_(dense, packed, mean, -mean, scale)
