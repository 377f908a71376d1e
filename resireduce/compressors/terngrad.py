"""TernGrad: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning",
NeurIPS 2017."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.compressors.base import Inexact
from resireduce.draw import generator
from resireduce.errors import ConfigError, is_number
from resireduce.kernels.bits import BYTE, octets, pack_codes, unpack_codes
from resireduce.payload import Payload


@dataclass(frozen=True)
class TernGrad(Inexact):
    """Sends -s, 0 or s for every element, in two bits: s its sign with probability |x| / s, s the largest magnitude.

    Magnitudes are first clipped (section 3.3) at 2.5 deviations from zero, sqrt(mean x^2), which is the deviation of
    the paper's gradients, whose mean is zero. Unbiased except for what is clipped.
    """

    source_feeds_back: ClassVar[bool] = False

    clip: float | None = 2.5
    """In deviations, more than 0; None: nothing is clipped."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a limit that cannot be used."""
        if self.clip is not None and not (is_number(self.clip) and self.clip > 0):
            raise ConfigError(f"clip: {self.clip!r} is not allowed; give a number of deviations, more than 0, or None")

    @property
    def unbiased(self) -> bool:
        """Whether the mean over all draws is the gradient: only if nothing is clipped."""
        return self.clip is None

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return two planes of bits, "not zero" and "negative", and s, in float32 (float64 for float64)."""
        flat, source = grad.view(-1), generator(grad.device, name, step)
        largest = self._largest(flat)
        planes = torch.empty(2, -(-flat.numel() // BYTE), dtype=torch.uint8, device=flat.device)
        for piece in pieces(flat.numel(), BYTE):
            draw = torch.rand(piece.stop - piece.start, dtype=torch.float32, device=flat.device, generator=source)
            sent = draw < flat[piece].abs() / largest  # beyond s always; not, where s and so all is 0
            planes[:, octets(piece)] = pack_codes(sent | ((flat[piece] < 0) & sent).to(torch.uint8) << 1, 2)
        return Payload.pack(planes.view(-1), largest, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x -s, 0 or s to `dense`; return `dense`."""
        packed, largest = payload.parts()
        flat, planes = dense.view(-1), packed.view(2, -1)
        for piece in pieces(flat.numel(), BYTE):
            codes = unpack_codes(planes[:, octets(piece)], piece.stop - piece.start, torch.uint8)
            values = torch.where(codes > 1, -largest, largest).mul_(codes > 0)
            flat[piece].add_(values.to(flat.dtype), alpha=scale)
        return dense

    def _largest(self, flat: Tensor) -> Tensor:
        """Return s, [1]: the largest magnitude, or the clipping limit if that is smaller."""
        wide = torch.promote_types(flat.dtype, torch.float32)
        largest = torch.linalg.vector_norm(flat, torch.inf).to(wide).view(1)
        if self.clip is None:
            return largest
        mean = torch.zeros(1, dtype=torch.float64, device=flat.device)
        for piece in pieces(flat.numel()):
            mean += flat[piece].double().square().div_(flat.numel()).sum()
        limit = mean.sqrt_().mul_(self.clip).to(wide)
        return torch.where(limit > 0, torch.minimum(largest, limit), largest)  # squares of the tiniest are zero
