"""Reads what the rungs of one rank are made of, while it trains."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure.allocator import Allocator, AllocatorNow, release_workspaces
from benchmarks.measure.ladder import WARMUP
from benchmarks.measure.memory import peak_resident_bytes, resident_bytes
from benchmarks.measure.nvml import Idle, NvmlDevice
from benchmarks.measure.sampler import Sampler

NO_CUDA = "no CUDA device"


@dataclass(frozen=True)
class Boundary:
    """What was held at a step boundary with gradients, by the tensors and by the allocator."""

    states_bytes: int
    on_device_bytes: int
    buffers_bytes: int
    resident_bytes: int | None
    allocator: AllocatorNow | None


class Meter:
    """Make it before the model is built: what is there then is the baseline.

    Time is cut into windows: warmup, steady (training steps after it), evaluation.

    Args:
        device: what is trained on.
        nvml: this device's; or why it cannot be asked, in one line.
        idle: the device before CUDA began.
        ranks_on_device: how many ranks share it, this one included.
        cuda: `torch.cuda`, or what behaves like it.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        nvml: NvmlDevice | str = NO_CUDA,
        idle: Idle | None = None,
        ranks_on_device: int = 1,
        cuda: Any = torch.cuda,
    ):
        self.device = device or torch.device("cpu")
        self.nvml, self.idle, self.ranks_on_device = nvml, idle, ranks_on_device
        self.allocator = Allocator(cuda, self.device) if self.device.type == "cuda" else None
        self.sampler = None if isinstance(nvml, str) else Sampler(nvml.read)
        self.resident_before = resident_bytes()
        self.allocator_before = self.allocator.now() if self.allocator else None
        if self.allocator:
            self.allocator.cuda.reset_peak_memory_stats(self.device)
        self.boundary: Boundary | None = None
        self.without_gradients_bytes: int | None = None
        self.workspaces_bytes = 0
        self.peak_resident_bytes: dict[str, int] = {}
        self.window = WARMUP

    def start(self) -> None:
        """Begin to sample; the allocator's first window began with the meter."""
        if self.sampler:
            self.sampler.start()

    def enter(self, window: str) -> None:
        """Go on to a window of this name; peaks of all windows of one name count together."""
        self.peak_resident_bytes[self.window] = peak_resident_bytes()
        if self.allocator:
            self.allocator.enter(window)
        if self.sampler:
            self.sampler.enter(window)
        self.window = window

    def step_done(self) -> None:
        """Ask for a sample at the end of a step."""
        if self.sampler:
            self.sampler.ask()

    def stop(self) -> None:
        """End the last window. No harm if it has ended already."""
        if self.sampler:
            self.sampler.stop()
        if self.window != "over":
            self.enter("over")

    def at_boundary(self, held: Mapping[str, Iterable[Tensor]], buffers: Iterable[Tensor] = ()) -> None:
        """Read after a step and before `zero_grad`.

        Args:
            held: the tensors of the model states, by kind, as resireduce.memory.held_tensors has them.
            buffers: the model's.
        """
        tensors = {id(tensor): tensor for kind in held.values() for tensor in kind}.values()
        self.boundary = Boundary(
            states_bytes=sum(tensor.nbytes for tensor in tensors),
            on_device_bytes=sum(tensor.nbytes for tensor in tensors if tensor.device.type == self.device.type),
            buffers_bytes=sum(buffer.nbytes for buffer in buffers),
            resident_bytes=resident_bytes(),
            allocator=self.allocator.now() if self.allocator else None,
        )

    def without_gradients(self) -> None:
        """Read at the same or another step boundary, after `zero_grad(set_to_none=True)`."""
        if self.allocator:
            with_workspaces = self.allocator.now().allocated_bytes
            self.without_gradients_bytes = with_workspaces
            if release_workspaces():
                self.workspaces_bytes = with_workspaces - self.allocator.now().allocated_bytes
