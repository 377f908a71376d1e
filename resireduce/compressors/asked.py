"""What a round asks of all ranks beside a sum, which a plain tensor asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ToAll:
    """This rank's elements, for all ranks; each is sent a list of what every rank had, in their order."""

    tensor: Tensor
    """1-D, as many elements as this rank has, perhaps none."""


@dataclass(frozen=True)
class ToEach:
    """This rank's elements, some for each rank; each is sent a list of what every rank had for it, in their order."""

    tensor: Tensor
    """1-D: the elements for rank 0, and behind them those for rank 1, and so on."""
    sizes: Sequence[int]
    """How many elements are for each rank."""
