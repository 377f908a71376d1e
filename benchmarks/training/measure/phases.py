"""Time of the phases of training steps: on the CPU by the clock, on a GPU by events in its stream."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from resireduce.core.optimizer import DistributedOptimizer

OTHER = "other"
PHASES: dict[str, dict[str, tuple[str, ...]]] = {
    "compress": {"feedback": ("compress", "end_round", "absorb", "add_to_residual"), "finiteness": ("check",)},
    "communicate": {
        "feedback": ("send", "wait"),
        "queue": ("sums",),
        "scatter": ("launch", "has_come", "wait", "agree"),
        "gather": ("gathered",),
    },
    "decompress": {"feedback": ("receive",)},
    "update": {"updater": ("update_some", "update_rest")},
}
"""The library's phases, by the parts of an optimizer and the methods that they consist of. compress: check, compensate,
compress, update the residual. communicate: launch messages, and wait for those that have not come yet, so of the
transfer only what nothing hides. decompress: received messages to dense averages. update: the wrapped optimizer. A
phase may lie within another, as waiting for a message in `decompress`."""
NAMES = ("data", "forward_backward", *PHASES, OTHER)
"""The phases, whose sum is the step. data: making the batch and moving it to the device. forward_backward: zero_grad,
loss and backward pass, without the library's work in it. other: not in any phase. The rest: PHASES."""


class PhaseClock:
    """Times the phases of steps: each moment of a step belongs to its innermost phase.

    On a GPU moments are events in its current stream, and nothing waits for them during training. If the stream is idle
    because the host is late or waits for another rank, the time counts to the host's phase.
    """

    def __init__(self, device: torch.device | None = None):
        self._gpu = device if device is not None and device.type == "cuda" else None
        self._steps: list[list[tuple[str, Any]]] = []
        self._active: list[str] = []

    def _mark(self) -> Any:
        if self._gpu is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._gpu))
        return event

    def _between(self, start: Any, end: Any) -> float:
        return float(end - start) if self._gpu is None else float(start.elapsed_time(end)) / 1000

    @contextmanager
    def step(self, optimizer: DistributedOptimizer) -> Iterator[None]:
        """Observe one step, and the phases of `optimizer` within it."""
        self._active, step = [OTHER], [(OTHER, self._mark())]
        self._steps.append(step)
        with self._watching(optimizer.parts):
            yield
        step.append((OTHER, self._mark()))
        self._active = []

    @contextmanager
    def _watching(self, parts: Mapping[str, object]) -> Iterator[None]:
        """Count each call of the methods in PHASES of an optimizer's `parts`; it has not all of them."""
        found = [
            (parts[key], name, phase)
            for phase, methods in PHASES.items()
            for key, names in methods.items()
            for name in names
            if parts.get(key) is not None
        ]
        for part, name, phase in found:
            setattr(part, name, self.phase(phase)(getattr(part, name)))
        yield
        for part, name, _ in found:
            delattr(part, name)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block as phase `name`, except for phases within it; outside of `step` nothing is counted."""
        if not self._active:
            yield
            return
        self._active.append(name)
        self._steps[-1].append((name, self._mark()))
        yield
        self._active.pop()
        self._steps[-1].append((self._active[-1], self._mark()))

    def seconds(self) -> list[dict[str, float]]:
        """Return, for each step observed, the time of every phase, and of the step as a whole."""
        if self._gpu is not None:
            torch.cuda.synchronize(self._gpu)
        found = []
        for step in self._steps:
            sums = dict.fromkeys(NAMES, 0.0)
            for (name, start), (_, end) in pairwise(step):
                sums[name] += self._between(start, end)
            found.append(sums | {"step": self._between(step[0][1], step[-1][1])})
        return found

    def median_seconds(self) -> dict[str, float]:
        """Return the median of each phase, and of the step, over the steps observed; nothing without any."""
        steps = self.seconds()
        return {name: median(step[name] for step in steps) for name in (steps[0] if steps else ())}
