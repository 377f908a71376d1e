"""QSGD: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.blocks import pieces, spread
from resireduce.compressors.base import Inexact
from resireduce.draw import generator
from resireduce.errors import ConfigError, check_count
from resireduce.payload import Payload

LEVELS = 127
"""Most levels that int8 can hold, besides the sign."""


@dataclass(frozen=True)
class QSGD(Inexact):
    """Each bucket of elements as its norm and, for each element, a level: 127 |x| / norm, rounded at random, signed.

    Unbiased: the expectation of a level is the exact quotient. All-gathered; one byte per element, four per bucket.
    """

    source_feeds_back: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    norm: float = 2.0
    """Which norm a bucket is scaled by: 2 (the paper's) or infinity."""
    bucket: int | None = 128
    """Elements that share a norm, 1 or more; None: the whole tensor."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a norm or a bucket that cannot be used."""
        if self.norm not in (2, math.inf):
            raise ConfigError(f"norm: {self.norm!r} is not allowed; give 2 or infinity")
        check_count("bucket", self.bucket, 1, "elements", or_none=True)

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return levels of all elements (int8) and norms of all buckets (float32). A bucket of zeros stays zero."""
        flat, source = grad.view(-1), generator(grad.device, name, step)
        norms = self._norms(flat, self.norm)
        if not (
            norms.is_meta or norms.isfinite().all()
        ):  # squares overflow: rounding is unbiased by any norm >= max |x|
            norms = self._norms(flat, torch.inf)
        norms.clamp_(max=torch.finfo(norms.dtype).max)  # those of float64 may be more; the rest is error
        smallest = torch.finfo(norms.dtype).tiny
        levels = torch.empty(flat.numel(), dtype=torch.int8, device=flat.device)
        for piece in pieces(flat.numel(), self.bucket or 1):
            scaled = flat[piece] / self._spread(norms, piece).clamp(min=smallest)
            draw = torch.rand(scaled.shape, dtype=torch.float32, device=flat.device, generator=source)
            # floor(x + u), u in [0, 1), is x on average, for either sign; rounding may take it beyond the last level.
            levels[piece] = scaled.mul_(LEVELS).add_(draw).floor_().clamp_(-LEVELS, LEVELS)
        return Payload.pack(levels, norms, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x level x norm / 127 to `dense`; return `dense`."""
        levels, norms = payload.parts()
        flat = dense.view(-1)
        largest = min(torch.finfo(flat.dtype).max, torch.finfo(norms.dtype).max)
        for piece in pieces(flat.numel(), self.bucket or 1):
            values = levels[piece] * (self._spread(norms, piece) / LEVELS)
            values.clamp_(-largest, largest)  # a level that was rounded up may be beyond what the dtype holds
            flat[piece].add_(values.to(flat.dtype), alpha=scale)
        return dense

    def _norms(self, flat: Tensor, order: float) -> Tensor:
        """Return the norm of each bucket, 1-D, float32; the last bucket may be shorter."""
        size, wide = self.bucket or flat.numel(), torch.promote_types(flat.dtype, torch.float32)
        whole = flat[: flat.numel() - flat.numel() % size].view(-1, size)
        norms = torch.linalg.vector_norm(whole, order, dim=1, dtype=wide).float()
        rest = flat[whole.numel() :]
        if not rest.numel():
            return norms
        return torch.cat((norms, torch.linalg.vector_norm(rest, order, dtype=wide).float().view(1)))

    def _spread(self, norms: Tensor, piece: slice) -> Tensor:
        return norms if self.bucket is None else spread(norms, self.bucket, piece)


@dataclass(frozen=True)
class QSGDMax(QSGD):
    """QSGD with one bucket, whose norm is the largest magnitude, as in the code released with the ResiReduce paper."""

    norm: float = torch.inf
    bucket: int | None = None
