"""AD-Topk's form with thresholds: Ming et al., "ADTopk: All-dimension top-k compression for high-performance
data-parallel DNN training", HPDC 2024, as its released code means it."""

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resireduce.compressors.adtopk import ADTopK
from resireduce.compressors.base import Selecting, State
from resireduce.compressors.sparse import SparseCompressor
from resireduce.errors import ConfigError, check_count, is_number
from resireduce.kernels.largest import largest_magnitudes
from resireduce.kernels.reaching import reaching
from resireduce.payload import Payload
from resireduce.share import share

LAST = 0.75
"""Share of the training after which all-dimension top-k may be used."""
UNKNOWN = sys.float_info.max
"""The change of a threshold that has not changed yet: a finite number, as all that is saved must be."""


@dataclass(frozen=True)
class ADTopKThreshold(Selecting, SparseCompressor):
    """Sends what reaches the least magnitude of an earlier top-k, which is taken anew every `every` steps.

    In the first `warm_up` steps, and in each whose number is a multiple of `every`, the k largest are sent, k = max(1,
    floor(density x n)), and the least of them is the threshold until the next time. It is this compressor's state, one
    for each tensor. In between, all elements that reach it are sent, which may be none, some or all; zeros are never
    sent. In the last quarter of `steps`, a tensor whose threshold last changed by at most `stable` of itself is sent by
    all-dimension top-k. A plan assumes k.
    """

    equal_sizes: ClassVar[bool] = False

    warm_up: int = 15
    every: int = 10
    """The released scripts have 5, 10 or 20, by model."""
    steps: int | None = None
    """Steps of the whole training; None: unknown, and all-dimension top-k is never used."""
    stable: float = 0.1
    """Our choice: the released code compares the threshold with itself."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting that cannot be used."""
        super().__post_init__()
        for field, least in (("warm_up", 0), ("every", 1), ("steps", 1)):
            check_count(field, getattr(self, field), least, "steps", or_none=field == "steps")
        if not is_number(self.stable) or not 0 <= self.stable < math.inf:
            raise ConfigError(f"stable: {self.stable!r} is not allowed; give a number, 0 or more")

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return the threshold, negative before the first, and its last relative change: float64, [2]."""
        return {"threshold": torch.tensor([-1.0, UNKNOWN], dtype=torch.float64, device=like.device)}

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        """Return the flat indices of the k largest without zeros, as at the start: int64, ascending."""
        indices = largest_magnitudes(flat, share(self.density, flat.numel()))
        return indices if flat.is_meta else indices[flat[indices] != 0]

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        """Return this step's payload: the k largest, which update `state`, what reaches it, or all-dimension top-k."""
        flat, memory = grad.view(-1), state["threshold"]
        if grad.is_meta:
            return self.compress(grad, name, step)
        threshold, change = memory.tolist()
        if self.steps is not None and step >= LAST * self.steps and change <= self.stable:
            rows = ADTopK(self.density)
            indices = rows.sent_indices(rows.compress(grad, name, step)).sort().values
            return self.packed(grad, indices[flat[indices] != 0])
        if step >= self.warm_up and step % self.every and threshold >= 0:
            return self.packed(grad, reaching(flat, threshold))
        indices = self.select(flat, name, step)
        if len(indices):
            least = float(flat[indices].abs().min())
            change = abs(least - threshold) / threshold if threshold > 0 else UNKNOWN
            memory.copy_(torch.tensor([least, change], dtype=torch.float64, device="cpu"))
        return self.packed(grad, indices)
