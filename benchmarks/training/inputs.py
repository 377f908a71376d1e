"""Inputs of a simulated step, measured separately, beside the real steps that it is compared with.

Passes, compression and collectives are each timed alone, but on all ranks at once, so that the times are those of ranks
that share the machine.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.training import time_messages
from benchmarks.training.place import nodes_of
from benchmarks.training.time_compression import Compression
from benchmarks.training.time_passes import Passes, copying
from resireduce.comm.base import Communicator
from resireduce.comm.nodes import Levels
from resireduce.comm.torch import TorchCommunicator

STEPS = 3
"""Steps in each sample of passes, on which everything simulated rests."""


class Inputs:
    """Samples of all inputs, for all forms in `cells`, which all train one model on the same ranks.

    meet: returns when all ranks have called it.
    """

    def __init__(self, cells: Sequence[Cell], meet: Callable[[], None]):
        self._meet = meet
        world = TorchCommunicator()
        flat = next(cell for cell in cells if cell.hierarchy == "flat")
        by_node = next((cell for cell in cells if cell.hierarchy == "node"), None)
        self._passes = {cell.hierarchy: Passes(cell, meet) for cell in (flat, by_node) if cell is not None}
        levels: dict[str, Communicator] = {"flat": world}
        if by_node is not None:
            found = Levels.of(world, nodes_of(by_node))
            levels |= {"between": found.between} | ({} if found.node is None else {"in_node": found.node})
        self._collectives = time_messages.collectives(levels)
        peers = sorted({levels[name].world_size for name in levels if name != "in_node"})
        lossy = {(cell.compressor, cell.density): cell for cell in cells if cell.compressor != "none"}
        self._compression = {form: Compression(cell, peers, meet) for form, cell in lossy.items()}
        self.rounds: list[Mapping[str, Any]] = []
        """The results of each sample, as plain values."""

    def sample(self) -> None:
        """Time everything once; the order of passes alternates, since the first runs on the most rested machine."""
        order = [*self._passes.items()][:: 1 if len(self.rounds) % 2 else -1]
        compression = [
            {"compressor": form[0], "density": form[1], "tensors": timed.sample()}
            for form, timed in self._compression.items()
        ]
        messages = {name: time_messages.sample(one, self._meet) for name, one in self._collectives.items()}
        self.rounds.append(
            {
                "passes": {hierarchy: [passes.sample() for _ in range(STEPS)] for hierarchy, passes in order},
                "compression": compression,
                "messages": messages,
                "copied_bytes_per_second": copying(self._meet),
            }
        )
