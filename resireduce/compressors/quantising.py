"""What compressors have in common that send something of every element, rounded; each names its own source paper."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.payload import Payload


@dataclass(frozen=True)
class Quantising(Compressor):
    """Sends something of every element. What rounding takes is the error; a density means nothing to it."""

    @property
    def exact(self) -> bool:
        """False: values are rounded, so sent + error is the gradient but for rounding."""
        return False

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Return the compressor with its defaults: everything is sent, so that `density` means nothing to it."""
        return cls()

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Take off `grad` what was sent, which leaves what rounding changed; return `grad`."""
        return self.add_(grad, payload, scale=-1.0)
