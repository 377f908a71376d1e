"""Checks of GPUs: what torch and NVML report in a process that may crash, and what is wrong with it."""

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.devices import NO_PROCESS
from benchmarks.doctor.finding import GPU_ACCESS, SLOWLY, Finding, absent, failed, gibibytes, last_words, ok, warning
from benchmarks.launching.processes import Job, run_together

# --- what torch and NVML report ---

COMMAND = (sys.executable, "-m", "benchmarks.doctor.in_child", "facts")
PROBE = f"python -m benchmarks.doctor.in_child facts shows how it ends; {SLOWLY}"


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one, that torch sees."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    error: str | None = None
    """Why a small matrix product was wrong."""
    nvml_reason: str | None = None
    """Why NVML does not report its memory, or what this process uses of it."""


@dataclass(frozen=True)
class Facts:
    """Facts about torch and GPUs; None means not known, and `error` says why nothing is."""

    error: str | None = None
    torch: str | None = None
    torch_error: str | None = None
    cuda: str | None = None
    """CUDA version that torch is built for; None if it is built for CPUs."""
    nccl: str | None = None
    """NCCL version that torch is built with."""
    no_gpu: str | None = None
    """Why torch sees no GPU, in CUDA's words."""
    gpus: tuple[Gpu, ...] = ()
    nvml_error: str | None = None
    driver: str | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Facts":
        """Return the facts that the probe reported; JSON has lists for tuples."""
        gpus = tuple(Gpu(**gpu | {"capability": tuple(gpu["capability"])}) for gpu in values.get("gpus", ()))
        return cls(**values | {"gpus": gpus})


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


# --- what is wrong ---

CUDA_BUILD = "image cuda12, or a torch built for CUDA"
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
"""Exists wherever the machine has a driver, even in containers without access to its GPUs."""
WITHOUT = "without need of a GPU RESIREDUCE_DEVICE=cpu"


def check_gpu(
    facts: Facts, needed: bool = False, environment: Mapping[str, str] = os.environ, driver: Path = KERNEL_MODULE
) -> list[Finding]:
    """Return one finding, or one for each GPU that fails. needed: a missing GPU is a failure."""
    if facts.error:  # even if not needed: a crash or hang here would happen in every rank
        return [failed("gpu", facts.error, PROBE)]
    if facts.cuda is None:
        reason = f"torch {facts.torch} is built for CPUs" if facts.torch else "there is no torch"
        if driver.exists() and not needed:
            said = f"a driver is here, but {reason}: cells train without a GPU"
            return [warning("gpu", said, f"{CUDA_BUILD}; {WITHOUT}")]
        return [absent("gpu", reason, CUDA_BUILD, needed)]
    if not facts.gpus:
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        among = "" if visible is None else f" among CUDA_VISIBLE_DEVICES={visible!r}"
        reason = f"torch sees no GPU{among}: {facts.no_gpu or 'there is none'}"
        cure = f"in a container {GPU_ACCESS}; under Slurm --gres=gpu:1; {WITHOUT}"
        # Beside a driver there should be one, or cells would silently use the CPU.
        return [absent("gpu", reason, cure, needed or (visible is None and driver.exists()))]
    if bad := [(index, gpu) for index, gpu in enumerate(facts.gpus) if gpu.error]:
        cure = "another GPU or torch; nvidia-smi -q and the kernel's log (dmesg) say more"
        return [failed("gpu", f"GPU {index}, {gpu.name}: {gpu.error}", cure) for index, gpu in bad]
    kinds = Counter((gpu.name, gpu.capability, gibibytes(gpu.memory_bytes)) for gpu in facts.gpus)
    shown = (f"{count} x {name} (sm_{a}{b}, {size})" for (name, (a, b), size), count in kinds.items())
    return [ok("gpu", f"{', '.join(shown)}; matrix products are right")]


UTILITY = f"NVIDIA_DRIVER_CAPABILITIES=compute,utility with {GPU_ACCESS}; after an update of the driver restart"
HOST_PIDS = "docker run --pid=host; apptainer exec without --pid and --containall"


def check_nvml(facts: Facts, needed: bool = False) -> list[Finding]:
    """Return one finding, or one for each GPU with an unreadable value. needed: a missing GPU is a failure."""
    if not facts.gpus:
        return [absent("nvml", "torch sees no GPU", "see check gpu", needed)]
    if facts.nvml_error:
        return [failed("nvml", facts.nvml_error, UTILITY)]
    problems = [
        warning(
            "nvml",
            f"GPU {index}: {gpu.nvml_reason}; the record will have no such figure",
            HOST_PIDS if gpu.nvml_reason == NO_PROCESS else UTILITY,
        )
        for index, gpu in enumerate(facts.gpus)
        if gpu.nvml_reason
    ]
    return problems or [ok("nvml", f"driver {facts.driver}: memory of the device and of processes can be read")]
