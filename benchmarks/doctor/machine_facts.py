"""What torch and NVML report here; asked once, in a separate process, so that a crashing driver ends only that."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.doctor.child import Job, run_together
from benchmarks.doctor.known_faults import SLOWLY, last_words

COMMAND = (sys.executable, "-m", "benchmarks.doctor.probe_child", "facts")
PROBE = f"python -m benchmarks.doctor.probe_child facts shows how it ends; {SLOWLY}"


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one, that torch sees."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    error: str | None = None
    """Why a small matrix product was wrong."""
    nvml_error: str | None = None
    """Why NVML does not know the GPU."""
    device_reason: str | None = None
    """Why NVML does not report how much of its memory is in use."""
    process_reason: str | None = None
    """Why NVML does not report how much of it this process uses."""


@dataclass(frozen=True)
class Facts:
    """Facts about torch and GPUs; None means not known, and `error` says why nothing is."""

    error: str | None = None
    torch: str | None = None
    torch_error: str | None = None
    cuda: str | None = None
    """CUDA version that torch is built for; None if it is built for CPUs."""
    architectures: tuple[str, ...] = ()
    """From torch.cuda.get_arch_list: sm_90 is machine code, compute_90 is code that the driver can compile."""
    nccl: str | None = None
    """NCCL version that torch is built with."""
    no_gpu: str | None = None
    """Why torch sees no GPU, in CUDA's words."""
    gpus: tuple[Gpu, ...] = ()
    libcuda: bool = False
    """Whether the driver's library can be loaded."""
    nvml_error: str | None = None
    driver: str | None = None
    driver_cuda: tuple[int, int] | None = None
    """Newest CUDA version that the driver supports."""
    nvml_library: str | None = None
    """Path of NVML's library, with links resolved."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Facts":
        """Return the facts that the probe reported."""
        known = {field.name for field in fields(cls)}
        found = {name: _frozen(value) for name, value in values.items() if name in known and name != "gpus"}
        gpus = tuple(Gpu(**{name: _frozen(value) for name, value in gpu.items()}) for gpu in values.get("gpus", ()))
        return cls(**found, gpus=gpus)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def ask(timeout_seconds: float, hide_gpus: bool = False, command: Sequence[str] = COMMAND) -> Facts:
    """Ask the probe; what it could not find out is recorded too. hide_gpus: creates no context on any GPU."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if hide_gpus else {}
    (ended,) = run_together([Job(command, os.environ | hidden)], timeout_seconds)
    reports = ended.reports()
    if reports:
        return Facts.from_dict(reports[-1])
    if ended.code is None:
        return Facts(error=f"torch, NVML and the driver did not answer in {timeout_seconds:g} s")
    return Facts(error=f"the process that asks them ended with {ended.code}: {last_words(ended.output)}")
