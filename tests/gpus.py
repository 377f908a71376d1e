"""A GPU that is none: NVML and torch's allocator as they are documented to behave, for tests without one."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1 << 20


@dataclass
class FakeGpu:
    """What NVML knows of one GPU, or of one slice of it."""

    uuid: str
    used_bytes: int = 0
    processes: dict[int, int | None] = field(default_factory=dict)
    slices: list["FakeGpu"] = field(default_factory=list)
    is_slice: bool = False
    memory_error: int | None = None
    process_error: int | None = None


class FakeNvml:
    """Stands in for module pynvml, whose exceptions it raises."""

    nvmlMemory_v2 = pynvml.nvmlMemory_v2
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    NVMLError = pynvml.NVMLError

    def __init__(self, *gpus: FakeGpu, init_error: int | None = None):
        self.gpus, self.init_error = gpus, init_error
        self.reads = 0

    def _fail(self, code: int | None) -> None:
        if code is not None:
            raise pynvml.NVMLError(code)

    def nvmlInit(self) -> None:
        self._fail(self.init_error)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        found = [gpu for whole in self.gpus for gpu in (whole, *whole.slices) if gpu.uuid == uuid]
        self._fail(None if found else pynvml.NVML_ERROR_NOT_FOUND)
        return found[0]

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        return handle.uuid

    def nvmlDeviceIsMigDeviceHandle(self, handle: FakeGpu) -> int:
        return int(handle.is_slice)

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        self._fail(None if handle.slices else pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_ENABLE]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        return 7 if handle.slices else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeGpu:
        self._fail(None if index < len(handle.slices) else pynvml.NVML_ERROR_NOT_FOUND)
        return handle.slices[index]

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int) -> Any:
        self.reads += 1
        self._fail(handle.memory_error)
        assert version == pynvml.nvmlMemory_v2
        return SimpleNamespace(used=handle.used_bytes)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:
        self._fail(handle.process_error)
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.processes.items()]


@dataclass
class FakeCuda:
    """Stands in for `torch.cuda`: an allocator that rounds to 512 bytes, and reserves pieces of 2 MiB."""

    allocated: int = 0
    requested: int = 0
    reserved: int = 0
    peaks: dict[str, int] = field(default_factory=lambda: {"allocated": 0, "reserved": 0})
    retries: int = 0
    waits: int = 0

    def allocate(self, nbytes: int) -> None:
        """Negative: give back."""
        sign = 1 if nbytes > 0 else -1
        self.requested += nbytes
        self.allocated += sign * (-(-abs(nbytes) // 512) * 512)
        self.reserved = max(self.reserved, -(-self.allocated // (2 * MIB)) * 2 * MIB)
        self.peaks = {name: max(most, getattr(self, name)) for name, most in self.peaks.items()}

    def synchronize(self, device: Any) -> None:
        self.waits += 1

    def memory_stats(self, device: Any) -> dict[str, Any]:
        stats: dict[str, Any] = {f"{name}_bytes.all.peak": most for name, most in self.peaks.items()}
        names = ("allocated", "reserved", "requested")
        stats |= {f"{name}_bytes.all.current": getattr(self, name) for name in names}
        return stats | {"num_alloc_retries": self.retries, "num_ooms": 0}

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.peaks = {"allocated": self.allocated, "reserved": self.reserved}
