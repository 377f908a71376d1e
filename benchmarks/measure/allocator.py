"""What torch's CUDA allocator tells, window of time by window."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from benchmarks.measure.ladder import WARMUP


class CudaMemory(Protocol):
    """The part of `torch.cuda` that is used here."""

    def synchronize(self, device: Any) -> None:
        """Wait until the device has done all that was asked of it."""

    def memory_stats(self, device: Any) -> dict[str, Any]:
        """All counters."""
        ...

    def reset_peak_memory_stats(self, device: Any) -> None:
        """Let the peaks begin anew from what is held now."""


@dataclass(frozen=True)
class AllocatorNow:
    """What is held at one moment, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    requested_bytes: int
    """Before rounding; 0 where the allocator does not count it (cudaMallocAsync)."""


@dataclass
class Allocator:
    """The counters of one device; `cuda` is torch.cuda, or what behaves like it."""

    cuda: CudaMemory
    device: torch.device
    window: str = WARMUP
    allocated_bytes: dict[str, int] = field(default_factory=dict)
    """Most allocated, by window."""
    reserved_bytes: dict[str, int] = field(default_factory=dict)
    """Most reserved, by window: what one window leaves cached the next one has from its start."""

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
        """What makes the figures compare less well: memory ran out, and the cache was emptied to go on."""
        stats = self.cuda.memory_stats(self.device)
        return [
            flag
            for flag, counter in (("alloc-retries", "num_alloc_retries"), ("out-of-memory", "num_ooms"))
            if int(stats.get(counter, 0)) > 0
        ]


def release_workspaces() -> bool:
    """Free cuBLAS's workspaces, which torch's allocator holds until the end. Whether this torch can."""
    release = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if release is None:
        return False
    release()
    return True
