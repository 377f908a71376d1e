"""Times the compression of each tensor of a model and the averaging of its payloads, on all ranks at once."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.core.cell import Cell
from benchmarks.core.prepared import find_root
from benchmarks.training.build import build
from resireduce.comm.local import LocalCommunicator
from resireduce.core.messages import Message
from resireduce.core.payload import Payload


class Compression:
    """Times the error feedback of one cell's compressor, without sending anything.

    Args:
        cell: names the model, the compressor and the scheme.
        peers: numbers of payloads that are averaged; each number is timed.
        meet: returns when all ranks have called it.
    """

    def __init__(self, cell: Cell, peers: Sequence[int], meet: Callable[[], None]):
        alone = replace(cell, backend="local", world_size=1, hierarchy="flat", ranks_per_node=None, merge="none")
        self.trainer = build(alone, LocalCommunicator(), None, find_root())
        self._peers, self._meet, self._step = peers, meet, 0
        batch = self.trainer.batch(next(self.trainer.indices()), 0)
        self.trainer.train_step(0, batch)  # in the first step, memory is new
        feedback = self.trainer.optimizer.feedback
        own = torch.Generator().manual_seed(0)
        self._gradients = {
            name: torch.randn(parameter.shape, generator=own)
            for name, parameter in self.trainer.model.named_parameters()
            if feedback.merges(name)
        }

    def sample(self) -> list[dict[str, Any]]:
        """Return for each tensor its elements, the seconds to compress it, and those to average, by payload count.

        A compressor whose payloads are summed on their way has one payload, the sum.
        """
        feedback, found = self.trainer.optimizer.feedback, []
        self._step += 1
        feedback.begin_step(self._step)
        self._meet()
        for name, values in self._gradients.items():
            grad = values.clone()
            start = time.perf_counter()
            message = feedback.compress({name: grad}, self._step)
            compress = time.perf_counter() - start
            assert isinstance(message, Message)
            (payload,), peers = message.payloads, self._peers if message.is_gathered else [1]
            averaging = {str(count): self._average(payload, name, count) for count in peers}
            found.append({"elements": values.numel(), "compress_seconds": compress, "average_seconds": averaging})
        feedback.states.commit()
        return found

    def _average(self, payload: Payload, name: str, count: int) -> float:
        compressor = self.trainer.optimizer.feedback.compressor_of(name)
        start = time.perf_counter()
        into = torch.empty(payload.shape, dtype=payload.dtype)
        compressor.combine_(into, [payload] * count, 1 / count)
        return time.perf_counter() - start
