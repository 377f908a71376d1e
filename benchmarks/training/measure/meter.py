"""Reads the data for one rank's rungs while it trains, including torch's CUDA allocator."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.ladder import WARMUP
from benchmarks.core.nvml import Idle, NvmlDevice
from benchmarks.training.measure.sampler import Sampler
from benchmarks.training.measure.tracker import peak_resident_bytes, resident_bytes


@dataclass(frozen=True)
class AllocatorNow:
    """The allocator's bytes at one moment."""

    allocated_bytes: int
    reserved_bytes: int
    requested_bytes: int
    """Bytes before rounding; 0 if the allocator does not count them (cudaMallocAsync)."""


@dataclass
class Allocator:
    """The counters of one device; `cuda` is torch.cuda, or a stand-in for it."""

    cuda: Any
    device: torch.device
    window: str = WARMUP
    allocated_bytes: dict[str, int] = field(default_factory=dict)
    """Most allocated, by window."""
    reserved_bytes: dict[str, int] = field(default_factory=dict)
    """Most reserved, by window; memory that one window leaves cached counts in the next one from its start."""

    def now(self) -> AllocatorNow:
        """Wait for the device, and read what is held."""
        self.cuda.synchronize(self.device)
        stats = self.cuda.memory_stats(self.device)
        current = (stats.get(f"{name}_bytes.all.current", 0) for name in ("allocated", "reserved", "requested"))
        return AllocatorNow(*map(int, current))

    def enter(self, window: str) -> None:
        """Close the window with its peaks, and begin the next."""
        self.cuda.synchronize(self.device)
        stats = self.cuda.memory_stats(self.device)
        for name, most in (("allocated", self.allocated_bytes), ("reserved", self.reserved_bytes)):
            most[self.window] = max(int(stats.get(f"{name}_bytes.all.peak", 0)), most.get(self.window, 0))
        self.cuda.reset_peak_memory_stats(self.device)
        self.window = window

    def flags(self) -> list[str]:
        """Return conditions that make the figures less comparable: memory ran out, and the cache had to be emptied."""
        stats = self.cuda.memory_stats(self.device)
        return [
            flag
            for flag, counter in (("alloc-retries", "num_alloc_retries"), ("out-of-memory", "num_ooms"))
            if int(stats.get(counter, 0)) > 0
        ]


def release_workspaces() -> bool:
    """Free cuBLAS's workspaces, which torch's allocator holds until the end; return whether this torch can."""
    release = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if release is None:
        return False
    release()
    return True


NO_CUDA = "no CUDA device"


@dataclass(frozen=True)
class Boundary:
    """Bytes at a step boundary with gradients, by the tensors and by the allocator."""

    states_bytes: int
    on_device_bytes: int
    buffers_bytes: int
    resident_bytes: int | None
    allocator: AllocatorNow | None


class Meter:
    """The measurements of one rank. Make it before the model is built, since memory used then is the baseline.

    Time is cut into windows: warmup, steady (training steps after it), evaluation.

    Args:
        device: the device that is trained on.
        nvml: its NVML device, or in one line why NVML cannot be used.
        idle: the device before CUDA began.
        ranks_on_device: how many ranks share it, this one included.
        cuda: `torch.cuda`, or a stand-in for it.
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
        """Begin sampling; the allocator's first window has begun with the meter."""
        if self.sampler:
            self.sampler.start()

    def enter(self, window: str) -> None:
        """Begin a window of this name; peaks of all windows of one name count together."""
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
        """End the last window. Calling it again is harmless."""
        if self.sampler:
            self.sampler.stop()
        if self.window != "over":
            self.enter("over")

    def at_boundary(self, held: Mapping[str, Iterable[Tensor]], buffers: Iterable[Tensor] = ()) -> None:
        """Read memory after a step and before `zero_grad`.

        Args:
            held: the tensors of the model states, by kind, as resireduce.planning.memory.held_tensors returns them.
            buffers: the model's buffers.
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
        """Read memory at the same or another step boundary, after `zero_grad(set_to_none=True)`."""
        if self.allocator:
            with_workspaces = self.allocator.now().allocated_bytes
            self.without_gradients_bytes = with_workspaces
            if release_workspaces():
                self.workspaces_bytes = with_workspaces - self.allocator.now().allocated_bytes
