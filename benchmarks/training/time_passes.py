"""Times a training step of a rank that sends nothing, while all others compute at the same time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.cell import Cell
from benchmarks.core.prepared import find_root
from benchmarks.training.build import build
from resireduce.comm.base import Communicator, Deferred, Partition, Polled


class Silent(Communicator):
    """One rank of `world_size` that takes the others' part of each collective to be equal to its own.

    Sums are this rank's own tensors, so training with it is useful only for timing.
    """

    def __init__(self, world_size: int):
        self.rank, self.world_size = 0, world_size

    def split(self, *partitions: Partition) -> list[Communicator]:
        """Return a silent communicator of as many ranks as the first part of each of `partitions` has."""
        return [Silent(len(parts[0])) for parts in partitions]

    def all_reduce(self, tensor: Tensor, name: str) -> Polled[Tensor]:
        """Return a handle whose result is `tensor` as it is."""
        return Deferred(lambda: tensor)

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Polled[Sequence[Tensor]]:
        """Return a handle whose result is `tensor`, once for each rank."""
        return Deferred(lambda: [tensor] * self.world_size)

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Return `tensor` as it is."""
        return tensor


class Passes:
    """Times steps of one rank that sends nothing, without compression: passes, the library's own work, the update.

    By node the library does more work: gradients are distributed within the node, and averages reassembled.

    Args:
        cell: names the model, its data, the ranks and their levels.
        meet: returns when all ranks have called it.
    """

    def __init__(self, cell: Cell, meet: Callable[[], None]):
        dense = replace(cell, compressor="none", density=1.0, scheme="none", merge="none")
        self.trainer = build(dense, Silent(cell.world_size), None, find_root())
        self._meet = meet
        self._arrived: dict[str, float] = {}
        for name, parameter in self.trainer.model.named_parameters():
            parameter.register_post_accumulate_grad_hook(self._note(name))
        marked: Any = self._marked(self.trainer.backward)
        self.trainer.backward = marked  # type: ignore[method-assign]

    def _note(self, name: str) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            self._arrived[name] = time.perf_counter()

        return hook

    def _marked(self, backward: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def marked(loss: Tensor) -> None:
            self._began = time.perf_counter()
            backward(loss)
            self._ended = time.perf_counter()

        return marked

    def sample(self) -> dict[str, Any]:
        """Return the seconds from the start of one step to the begin and end of the backward pass, and to its end.

        Also returns `arrived_seconds`, when each gradient arrived, by name.
        """
        self.trainer.model.train()
        self._arrived = {}
        indices = next(iter(self.trainer.indices()))
        self._meet()
        start = time.perf_counter()
        self.trainer.train_step(0, self.trainer.batch(indices, 0))
        over = time.perf_counter()
        self._meet()
        return {
            "forward_seconds": self._began - start,
            "arrived_seconds": {name: at - start for name, at in self._arrived.items()},
            "backward_seconds": self._ended - start,
            "step_seconds": over - start,
        }


def copying(meet: Callable[[], None], elements: int = 1 << 16, repeats: int = 50) -> float:
    """Return the bytes per second that every rank reads and writes when all copy memory at the same time."""
    source, target = torch.zeros(elements), torch.empty(elements)
    meet()
    start = time.perf_counter()
    for _ in range(repeats):
        target.copy_(source)
    return 2 * 4 * elements * repeats / (time.perf_counter() - start)
