"""All observations of a cell, from its first step to its last."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from benchmarks.core.registry import OBSERVATIONS, WATCHES
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.scheme import load


class Observing:
    """All observations of one rank.

    Args:
        names: in OBSERVATIONS and WATCHES of `benchmarks.core.registry`; those in WATCHES begin now.
        optimizer: of the training.
        steps: of the whole training.
    """

    def __init__(self, names: Iterable[str], optimizer: DistributedOptimizer, steps: int):
        self._names, self._optimizer = tuple(names), optimizer
        self._watches = {name: load(WATCHES[name])(optimizer, steps) for name in self._names if name in WATCHES}

    def begin_step(self, step: int) -> None:
        """Announce that step number `step`, counted from 0, begins."""
        for watch in self._watches.values():
            watch.begin_step(step)

    def result(self, model: nn.Module) -> dict[str, Any]:
        """End all observations, and return their results for the trained `model`, by name."""
        seen = {name: watch.end() for name, watch in self._watches.items()}
        last = (name for name in self._names if name in OBSERVATIONS)
        return seen | {name: load(OBSERVATIONS[name])(model, self._optimizer) for name in last}
