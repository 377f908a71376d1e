"""Checks of GPUs: what torch and NVML report in a process that may crash, and what is wrong with it."""

import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.devices import NO_PROCESS
from benchmarks.doctor.finding import (
    GPU_ACCESS,
    SLOWLY,
    Finding,
    absent,
    explain,
    failed,
    gibibytes,
    last_words,
    ok,
    warning,
)
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

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Facts":
        """Return the facts that the probe reported; JSON has lists for tuples."""
        gpus = [gpu | {"capability": tuple(gpu["capability"])} for gpu in values.get("gpus", ())]
        newest = values.get("driver_cuda")
        frozen = {"gpus": tuple(Gpu(**gpu) for gpu in gpus), "driver_cuda": tuple(newest) if newest else None}
        return cls(**values | frozen)


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


# --- gpu ---

CUDA_BUILD = "image cuda12, or a torch built for CUDA"


def check_gpu(facts: Facts, needed: bool = False, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return one finding. needed: a missing GPU is a failure."""
    if facts.error:  # even if not needed: a crash or hang here would happen in every rank
        return [failed("gpu", facts.error, PROBE)]
    if facts.torch is None:
        return [absent("gpu", f"torch: {facts.torch_error}", "see check packages", needed)]
    if facts.cuda is None:
        return [absent("gpu", f"torch {facts.torch} is built for CPUs", CUDA_BUILD, needed)]
    if not facts.gpus:
        return [_none(facts, needed, environment.get("CUDA_VISIBLE_DEVICES"))]
    if bad := [_problem(index, gpu, gpu.error) for index, gpu in enumerate(facts.gpus) if gpu.error]:
        return bad
    kinds = Counter((gpu.name, gpu.capability, gibibytes(gpu.memory_bytes)) for gpu in facts.gpus)
    shown = (f"{count} x {name} (sm_{a}{b}, {size})" for (name, (a, b), size), count in kinds.items())
    return [ok("gpu", f"{', '.join(shown)}; matrix products are right")]


def _none(facts: Facts, needed: bool, visible: str | None) -> Finding:
    """Return the finding for no GPU; if a driver answers there should be one, or cells would silently use the CPU."""
    if visible is not None:
        cure = "unset CUDA_VISIBLE_DEVICES, or under Slurm ask for a GPU: --gres=gpu:1"
        return absent("gpu", f"torch sees no GPU among CUDA_VISIBLE_DEVICES='{visible}'", cure, needed)
    reason = f"torch sees no GPU: {facts.no_gpu or 'there is none'}"
    answers = facts.libcuda and facts.driver_cuda is not None
    cure = f"see check driver; in a container {GPU_ACCESS}; without need of a GPU RESIREDUCE_DEVICE=cpu"
    return absent("gpu", reason, cure, needed or answers)


def _problem(index: int, gpu: Gpu, error: str) -> Finding:
    major, minor = gpu.capability
    known = explain(error)
    cure = known.cure if known else "another GPU or node; nvidia-smi -q and the kernel's log (dmesg) say more"
    return failed("gpu", f"GPU {index}, {gpu.name} (sm_{major}{minor}): {error}", cure)


# --- driver ---

KERNEL_MODULE = Path("/proc/driver/nvidia/version")
"""Exists wherever the machine has a driver, even in containers without access to its GPUs."""
CONTROL_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True)
class Machine:
    """The facts about the driver that are visible without its library."""

    kernel_module: str | None
    """Version of the kernel module."""
    control_device: bool


def look(kernel_module: Path = KERNEL_MODULE, control_device: Path = CONTROL_DEVICE) -> Machine:
    """Return the facts about this machine's driver."""
    try:
        text = kernel_module.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Machine(None, control_device.exists())
    match = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return Machine(match[0] if match else "unknown", control_device.exists())


def check_driver(facts: Facts, machine: Machine, needed: bool = False) -> list[Finding]:
    """Return one finding. needed: a missing driver is a failure."""
    if facts.error:
        return [absent("driver", facts.error, "see check gpu", needed)]
    if facts.cuda is None:
        return [_cpu_build(facts, machine, needed)]
    if machine.kernel_module and not (facts.libcuda and machine.control_device):
        lacking = f"not its {'device files' if facts.libcuda else 'library libcuda'}"
        detail = f"driver {machine.kernel_module} is here, {lacking}: started without access to the GPUs"
        return [failed("driver", detail, f"{GPU_ACCESS}; or, meant so, RESIREDUCE_DEVICE=cpu")]
    if not facts.libcuda or facts.driver_cuda is None:
        reason = (
            f"libcuda is here, the driver does not answer: {facts.nvml_error}" if facts.libcuda else "no NVIDIA driver"
        )
        cure = f"a machine with a GPU and its driver; in a container {GPU_ACCESS}"
        return [absent("driver", reason, cure, needed)]
    return [_compare(facts.driver, facts.driver_cuda, facts.cuda)]


def _cpu_build(facts: Facts, machine: Machine, needed: bool) -> Finding:
    reason = f"torch {facts.torch} is built for CPUs" if facts.torch else f"torch: {facts.torch_error}"
    if machine.kernel_module and facts.torch and not needed:
        detail = f"driver {machine.kernel_module} is here, but {reason}: cells train without a GPU"
        return warning("driver", detail, f"{CUDA_BUILD}; or, meant so, RESIREDUCE_DEVICE=cpu")
    return absent("driver", reason, CUDA_BUILD, needed)


def _compare(driver: str | None, newest: tuple[int, int], cuda: str) -> Finding:
    """Judge whether a driver that supports CUDA up to `newest` runs code for `cuda`: major versions count."""
    found, major = f"driver {driver or 'unknown'} (CUDA {newest[0]}.{newest[1]})", int(cuda.partition(".")[0])
    if newest[0] >= major:
        return ok("driver", f"{found}, torch's CUDA is {cuda}")
    cure = f"a driver for CUDA {major}, or an image with CUDA {newest[0]}; on data-centre GPUs also package cuda-compat"
    return failed("driver", f"{found} is too old for torch's CUDA {cuda}", cure)


# --- nvml ---

UTILITY = f"NVIDIA_DRIVER_CAPABILITIES=compute,utility with {GPU_ACCESS}"
HOST_PIDS = "docker or podman run --pid=host; apptainer exec without --pid and --containall"
SLICE = "CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L), and in a container just that slice: --gpus device=MIG-..."


def check_nvml(facts: Facts, machine: Machine, needed: bool = False) -> list[Finding]:
    """Return one finding, or one for each GPU with an unreadable value. needed: a missing GPU is a failure."""
    if facts.error:
        return [absent("nvml", facts.error, "see check gpu", needed)]
    if facts.nvml_error:
        return [_without(facts, machine, needed)]
    if not facts.gpus:
        return [absent("nvml", "NVML answers, but torch sees no GPU", "see check gpu", needed)]
    problems = [finding for index, gpu in enumerate(facts.gpus) if (finding := _unreadable(index, gpu))]
    return problems or [ok("nvml", f"driver {facts.driver}: memory of the device and of processes can be read")]


def _without(facts: Facts, machine: Machine, needed: bool) -> Finding:
    reason = str(facts.nvml_error)
    if "not installed" in reason:
        cure = "pip install nvidia-ml-py"
    elif "version mismatch" in reason:
        cure = "after an update of the driver restart the machine; in an image remove its libnvidia-ml"
    else:
        cure = UTILITY
    there = bool(facts.gpus) or (machine.kernel_module is not None and "version mismatch" in reason)
    return absent("nvml", reason if there else f"{reason}, and no GPU", cure, needed or there)


def _unreadable(index: int, gpu: Gpu) -> Finding | None:
    reason = gpu.nvml_error or gpu.device_reason or gpu.process_reason
    if reason is None:
        return None
    if reason == NO_PROCESS:
        cure = HOST_PIDS
    elif "MIG" in reason or "Insufficient Permissions" in reason:
        cure = SLICE
    else:
        cure = UTILITY
    return warning("nvml", f"GPU {index}: {reason}; the record will have no such figure", cure)
