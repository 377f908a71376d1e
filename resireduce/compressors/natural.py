"""Natural compression: Horvath et al., "Natural compression for distributed deep learning", MSML 2022, section 2."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.compressors.quantising import Quantising
from resireduce.draw import generator
from resireduce.payload import Payload

EXPONENTS = 127
"""Powers of two that seven bits tell apart, beside zero."""
NEGATIVE = 128


@dataclass(frozen=True)
class Natural(Quantising):
    """Sends every element as one of the two powers of two around it, drawn so that it is right on average: a sign and
    an exponent in 8 bits.

    The exponents are the 127 up to the largest magnitude's. What is smaller than the least of these powers is sent
    as that or as zero, also right on average; only beyond the dtype's largest power of two it is rounded down.
    """

    source_feeds_back: ClassVar[bool] = False

    @property
    def unbiased(self) -> bool:
        """Whether the mean over all draws is the gradient: it is."""
        return True

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return a byte an element, and the largest exponent, in 32 bits."""
        flat, source = grad.view(-1), generator(grad.device, name, step)
        wide = torch.promote_types(flat.dtype, torch.float32)
        limit = math.floor(math.log2(torch.finfo(flat.dtype).max))
        top = torch.frexp(torch.linalg.vector_norm(flat, torch.inf).to(wide).view(1)).exponent.clamp(max=limit)
        codes = torch.empty(flat.numel(), dtype=torch.uint8, device=flat.device)
        for piece in pieces(flat.numel()):
            values = flat[piece].to(wide)
            draw = torch.rand(values.shape, dtype=torch.float32, device=flat.device, generator=source)
            exponents = _drawn(values, draw, top - EXPONENTS)
            codes[piece] = exponents.to(torch.uint8) + NEGATIVE * (values < 0).to(torch.uint8)
        return Payload.pack(codes, top, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the powers of two to `dense`; return `dense`."""
        codes, top = payload.parts()
        flat = dense.view(-1)
        exponents = torch.arange(EXPONENTS + 1, device=flat.device) - EXPONENTS + top
        powers = torch.exp2(exponents.to(torch.promote_types(payload.dtype, torch.float32)))
        powers[0] = 0
        table = torch.cat((powers, -powers)).to(flat.dtype)
        for piece in pieces(flat.numel()):
            flat[piece].add_(table[codes[piece].int()], alpha=scale)
        return dense


def _drawn(values: Tensor, draw: Tensor, zero: Tensor) -> Tensor:
    """Return exponents above `zero`, 1 to 127, or 0 for what is sent as zero, as `draw`, in [0, 1), has them."""
    mantissas, exponents = torch.frexp(values.abs())  # mantissas in [0.5, 1)
    above = exponents - 1 - zero
    rounded = above + (draw < 2 * mantissas - 1)
    beneath = draw < torch.ldexp(mantissas, above)  # of the least power, exponent 1
    return torch.where(above > 0, rounded, beneath.int()).clamp_(max=EXPONENTS).mul_(values != 0)
