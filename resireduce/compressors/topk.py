"""Top-k sparsification: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from resireduce.compressors.sparse import SparseCompressor
from resireduce.errors import check_share
from resireduce.kernels.select import largest_magnitudes
from resireduce.share import share


@dataclass(frozen=True)
class TopK(SparseCompressor):
    """Sends the k elements of largest magnitude, k = max(1, floor(density x n))."""

    density: float
    """Share of the elements that is sent, in (0, 1]."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a density outside (0, 1]."""
        check_share("density", self.density)

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Top-k with this density."""
        return cls(density)

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """The k largest."""
        return largest_magnitudes(flat, share(self.density, flat.numel()))
