"""Collectives that a round may request; a plain tensor requests an all-reduce."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AllGather:
    """This rank's elements, for all ranks; each rank gets a list of every rank's elements, in rank order."""

    tensor: Tensor
    """1-D, as many elements as this rank has, perhaps none."""


@dataclass(frozen=True)
class AllToAll:
    """This rank's elements, some for each rank; each rank gets a list of what every rank has for it, in rank order."""

    tensor: Tensor
    """1-D: the elements for rank 0, followed by those for rank 1, and so on."""
    sizes: Sequence[int]
    """How many elements are for each rank."""
