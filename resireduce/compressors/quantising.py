"""The common base of compressors that send every element, rounded; each names its own paper."""

from dataclasses import dataclass

from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.payload import Payload


@dataclass(frozen=True)
class Quantising(Compressor):
    """Sends every element, rounded. The rounding error is the error; a density is ignored."""

    @property
    def exact(self) -> bool:
        """False: values are rounded, so sent + error equals the gradient only up to rounding."""
        return False

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract what was sent from `grad`, which leaves the rounding error; return `grad`."""
        return self.add_(grad, payload, scale=-1.0)
