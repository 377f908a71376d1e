"""Natural compression: Horvath et al., "Natural compression for distributed deep learning", MSML 2022, section 2."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.blocks import pieces
from resireduce.compressors.base import Inexact
from resireduce.draw import generator
from resireduce.payload import Payload

EXPONENTS = 127
"""Powers of two that seven bits distinguish, besides zero."""
NEGATIVE = 128
MANTISSA = 23
"""Bits of float32 below its exponent."""


@dataclass(frozen=True)
class Natural(Inexact):
    """Sends every element as one of the two powers of two around it, drawn so that it is right on average: a sign and
    an exponent in 8 bits.

    The exponents are the 127 up to the largest magnitude's. An element below the least of these powers is sent as that
    power or as zero, also right on average; only one beyond the dtype's largest power of two is rounded down.
    """

    source_feeds_back: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return one byte per element, and the largest exponent, in 32 bits."""
        flat, source = grad.view(-1), generator(grad.device, name, step)
        wide = torch.promote_types(flat.dtype, torch.float32)
        limit = math.frexp(torch.finfo(flat.dtype).max)[1] - 1
        top = torch.frexp(torch.linalg.vector_norm(flat, torch.inf).to(wide).view(1)).exponent.clamp(max=limit)
        half = top // 2  # 2^-top alone may be beyond the dtype
        scales = torch.exp2(-half.to(wide)), torch.exp2((half - top).to(wide))
        codes = torch.empty(flat.numel(), dtype=torch.uint8, device=flat.device)
        for piece in pieces(flat.numel()):
            scaled = flat[piece].to(wide, copy=True).abs_().mul_(scales[0]).mul_(scales[1]).float()
            draw = torch.randint(1 << MANTISSA, scaled.shape, dtype=torch.int32, device=flat.device, generator=source)
            # Up to 1: exponents are as float32 has them, 127 and less, and a mantissa that overflows adds one.
            exponents = draw.add_(scaled.view(torch.int32)).bitwise_right_shift_(MANTISSA).clamp_(max=EXPONENTS)
            codes[piece] = exponents.add_(flat[piece] < 0, alpha=NEGATIVE)
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
