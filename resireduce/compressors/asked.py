"""What a round can ask of all ranks, other than a sum, which a plain tensor asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ToAll:
    """This rank's elements, for all ranks; each rank gets a list of every rank's elements, in rank order."""

    tensor: Tensor
    """1-D, as many elements as this rank has, perhaps none."""


@dataclass(frozen=True)
class ToEach:
    """This rank's elements, some for each rank; each rank gets a list of what every rank has for it, in rank order."""

    tensor: Tensor
    """1-D: the elements for rank 0, followed by those for rank 1, and so on."""
    sizes: Sequence[int]
    """How many elements are for each rank."""
