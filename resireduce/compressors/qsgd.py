"""QSGD: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.draw import generator
from resireduce.payload import Payload

LEVELS = 127
"""Most levels that int8 can hold, beside the sign."""


@dataclass(frozen=True)
class QSGD(Compressor):
    """Each bucket of elements as its norm and, for each element, a level: 127 |x| / norm, rounded at random, signed.

    Unbiased: the expectation of a level is the exact quotient. All-gathered; one byte an element and four a bucket.
    """

    exact: ClassVar[bool] = False

    norm: float = 2.0
    """Of a bucket: 2 (the paper's) or infinity."""
    bucket: int | None = 128
    """Elements that share a norm; None: the whole tensor."""

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Density means nothing here: everything is sent."""
        return cls()

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Levels (int8) and norms (float32). A bucket of zeros has norm zero and stays zero."""
        buckets = self._buckets(grad.view(-1).float())
        norms = torch.linalg.vector_norm(buckets, self.norm, dim=1)
        scaled = (buckets / norms.clamp(min=torch.finfo(norms.dtype).tiny)[:, None]).mul_(LEVELS)
        draw = torch.rand(scaled.shape, device=grad.device, generator=generator(grad.device, name, step))
        # floor(x + u) with u in [0, 1) is x on average, for either sign; rounding may take it beyond the last level.
        levels = scaled.add_(draw).floor_().clamp_(-LEVELS, LEVELS).to(torch.int8)
        return Payload.pack(levels.view(-1)[: grad.numel()], norms, like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """`dense` += `scale` x level x norm / 127."""
        levels, norms = payload.parts()
        values = self._buckets(levels.float()) * (norms / LEVELS)[:, None]
        flat = values.view(-1)[: dense.numel()].to(dense.dtype)
        return dense.add_(flat.view(dense.shape), alpha=scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """What rounding changed."""
        return self.add_(grad, payload, scale=-1.0)

    def _buckets(self, flat: Tensor) -> Tensor:
        """As rows of one bucket each, the last filled up with zeros."""
        size = self.bucket or flat.numel()
        missing = -flat.numel() % size
        return torch.nn.functional.pad(flat, (0, missing)).view(-1, size) if missing else flat.view(-1, size)


@dataclass(frozen=True)
class QSGDMax(QSGD):
    """With the largest magnitude of the whole tensor as its norm, as in the code released with the ResiReduce paper."""

    norm: float = torch.inf
    bucket: int | None = None
