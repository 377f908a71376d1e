"""The common base of compressors that send other values than the gradient's own; each names its own paper."""

from dataclasses import dataclass

from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.payload import Payload


@dataclass(frozen=True)
class Inexact(Compressor):
    """Sends values that are rounded, or computed from others. What they lack is the error."""

    @property
    def exact(self) -> bool:
        """False: sent + error equals the gradient only up to rounding."""
        return False

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract what was sent from `grad`; return `grad`."""
        return self.add_(grad, payload, scale=-1.0)
