"""Sparsification by a fixed threshold: Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
Interspeech 2015."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.sparse import SparseCompressor
from resireduce.errors import ConfigError, is_number
from resireduce.kernels.moments import not_above
from resireduce.kernels.reaching import reaching


@dataclass(frozen=True)
class Threshold(SparseCompressor):
    """Sends the elements whose magnitude is greater than `threshold`: none, some or all, and not as many on each rank.

    The values themselves are sent, where Strom sends the threshold with their sign.
    """

    equal_sizes: ClassVar[bool] = False

    threshold: float = 0.01
    """In the unit of the gradient, 0 or more."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a threshold that cannot be used."""
        if not is_number(self.threshold) or not math.isfinite(self.threshold) or self.threshold < 0:
            raise ConfigError(f"threshold: {self.threshold!r} is not allowed; give a number, 0 or more")

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of greater magnitudes, int64, ascending; all for a tensor without storage."""
        if flat.is_meta:
            return torch.empty(flat.numel(), dtype=torch.int64, device=flat.device)
        return reaching(flat, not_above(self.threshold, flat.dtype), strictly=True)
