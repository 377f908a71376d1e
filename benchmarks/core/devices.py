"""Checks the devices and backends that cells ask for, and reads a GPU's memory through NVML.

Imports no torch, and NVML only when it is asked; makes no CUDA context.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from resireduce.errors import ConfigError, choose

NO_PROCESS = "NVML reports no process memory (PID namespace)"


class NvmlUnavailable(Exception):
    """NVML cannot be used; the text says why, in one line."""


@dataclass(frozen=True)
class Idle:
    """A GPU before this process had used it."""

    used_bytes: int | None
    pids: tuple[int, ...] = ()
    """Processes that computed on it then, all of them foreign."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reading of a GPU; each figure that is missing has a reason."""

    device_bytes: int | None = None
    device_reason: str | None = None
    process_bytes: int | None = None
    process_reason: str | None = None
    pids: tuple[int, ...] = ()
    """Processes that compute on it, by NVML's PIDs, which may belong to another PID namespace than this process's."""


class NvmlDevice:
    """One GPU, or one slice of a GPU (MIG), by NVML's handle of it; `module` is pynvml, or a stand-in for it."""

    def __init__(self, module: Any, handle: Any):
        self._module, self._handle = module, handle
        self.uuid = str(module.nvmlDeviceGetUUID(handle))
        self.is_mig = bool(_ask(module, lambda: module.nvmlDeviceIsMigDeviceHandle(handle)))

    def read(self, pid: int | None = None) -> Reading:
        """Read once; never raises. pid: the process whose memory is read; None: this one."""
        module, device_bytes, device_reason = self._module, None, None
        try:
            device_bytes = int(module.nvmlDeviceGetMemoryInfo(self._handle, version=module.nvmlMemory_v2).used)
        except module.NVMLError as error:
            device_reason = f"NVML, memory of the device: {error}"
        try:
            processes = module.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except module.NVMLError as error:
            reason = f"NVML, memory of processes: {error}"
            return Reading(device_bytes=device_bytes, device_reason=device_reason, process_reason=reason)
        # A process with several contexts may be listed more than once.
        mine = [process.usedGpuMemory for process in processes if process.pid == (pid or os.getpid())]
        told = bool(mine) and None not in mine and sum(mine) > 0
        return Reading(
            device_bytes=device_bytes,
            device_reason=device_reason,
            process_bytes=sum(mine) if told else None,
            process_reason=None if told else NO_PROCESS,
            pids=tuple(sorted({int(process.pid) for process in processes})),
        )


def _ask(module: Any, question: Callable[[], Any]) -> Any:
    """Return NVML's answer; None if it raises."""
    try:
        return question()
    except module.NVMLError:
        return None


class Nvml:
    """NVML, initialised. `module` is pynvml, or a stand-in for it."""

    def __init__(self, module: Any):
        self._module = module
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            raise NvmlUnavailable(f"NVML: {error}") from None

    @classmethod
    def load(cls) -> Self:
        """Load NVML through package nvidia-ml-py. Raises NvmlUnavailable."""
        try:
            return cls(import_module("pynvml"))
        except ImportError:
            raise NvmlUnavailable("NVML: package nvidia-ml-py is not installed") from None

    def driver_version(self) -> str | None:
        """Return the driver's version."""
        return _ask(self._module, lambda: str(self._module.nvmlSystemGetDriverVersion()))

    def idle(self) -> dict[str, Idle]:
        """Return, by UUID, the state of every GPU and slice that can be seen. Call it before CUDA begins."""
        readings = {device.uuid: device.read() for device in self._devices()}
        return {uuid: Idle(reading.device_bytes, reading.pids) for uuid, reading in readings.items()}

    def _devices(self) -> Iterator[NvmlDevice]:
        module = self._module
        for index in range(_ask(module, module.nvmlDeviceGetCount) or 0):
            try:
                handle = module.nvmlDeviceGetHandleByIndex(index)
                yield NvmlDevice(module, handle)
                slices = module.nvmlDeviceGetMaxMigDeviceCount(handle)
            except module.NVMLError:
                continue
            for number in range(slices):
                try:
                    yield NvmlDevice(module, module.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
                except module.NVMLError:
                    continue

    def device(self, uuid: str, index: int = 0, visible: str | None = None) -> NvmlDevice:
        """Find the device that CUDA calls `uuid`, with or without the prefix GPU- or MIG-. Raises NvmlUnavailable.

        CUDA's `index` counts visible devices only. visible: CUDA_VISIBLE_DEVICES, which may name slices of a GPU by
        UUIDs of their own.
        """
        names = _names(uuid, index, (visible or "").split(","))
        problem: Exception | None = None
        for name in names:
            try:
                found = NvmlDevice(self._module, self._module.nvmlDeviceGetHandleByUUID(name))
            except self._module.NVMLError as error:
                problem = error
                continue
            if not found.is_mig and self._is_split(name):
                raise NvmlUnavailable("NVML: the GPU is split (MIG), and which slice this process has is not known")
            return found
        raise NvmlUnavailable(f"NVML: no device {names[-1]}: {problem}")

    def _is_split(self, name: str) -> bool:
        module = self._module
        modes = _ask(module, lambda: module.nvmlDeviceGetMigMode(module.nvmlDeviceGetHandleByUUID(name)))
        return modes is not None and bool(modes[0] == module.NVML_DEVICE_MIG_ENABLE)


def _names(uuid: str, index: int, visible: Sequence[str]) -> list[str]:
    """Return the names that NVML may have for the device, most specific first."""
    chosen = visible[index].strip() if index < len(visible) else ""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    return [*([chosen] if chosen.startswith("MIG-") else []), f"MIG-{bare}", f"GPU-{bare}"]


DEVICE_VARIABLE = "RESIREDUCE_DEVICE"
DEVICES = ("cpu", "cuda")


def wanted_device() -> str | None:
    """Return the device that RESIREDUCE_DEVICE asks for; None: a GPU if there is one. Raises ConfigError."""
    value = os.environ.get(DEVICE_VARIABLE)
    return choose(DEVICE_VARIABLE, value, DEVICES) if value else None


def has_nvidia() -> bool:
    """Say whether this machine has NVIDIA devices, with a driver."""
    return Path("/dev/nvidiactl").exists()


def check_backend(backend: str, image: Mapping[str, Any] | None = None) -> None:
    """Raise ConfigError if `backend` is Horovod and it is not installed; `image` is the ranks' image, if any."""
    if backend == "horovod" and image is not None:
        if not image["versions"].get("horovod"):
            raise ConfigError(f"backend: 'horovod' cannot be used: image {image['name']} has no Horovod; take another")
    elif backend == "horovod" and find_spec("horovod") is None:
        raise ConfigError("backend: 'horovod' cannot be used: Horovod is not installed; install it: make horovod")
