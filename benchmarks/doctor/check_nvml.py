"""Check nvml: that the memory of GPUs, and this process's share, can be read as the memory ladder does."""

import re

from benchmarks.core.nvml import NO_PROCESS
from benchmarks.doctor.check_driver import Machine
from benchmarks.doctor.finding import Finding, absent, failed, ok, warning
from benchmarks.doctor.known_faults import GPU_ACCESS
from benchmarks.doctor.machine_facts import Facts, Gpu

NAME = "nvml"
UTILITY = f"NVIDIA_DRIVER_CAPABILITIES=compute,utility with {GPU_ACCESS}"
OTHER_LIBRARY = "remove libnvidia-ml from the image: the driver's comes in by --gpus or --nv"
HOST_PIDS = "docker or podman run --pid=host; apptainer exec without --pid and --containall"
SLICE = "CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L), and in a container just that slice: --gpus device=MIG-..."


def check(facts: Facts, machine: Machine, needed: bool = False) -> list[Finding]:
    """Return one finding, or one for each GPU with an unreadable value. needed: a missing GPU is a failure."""
    if facts.error:
        return [absent(NAME, facts.error, "see check gpu", needed)]
    if facts.nvml_error:
        return [_without(facts, machine, needed)]
    if _is_shadowed(facts, machine):
        detail = f"{facts.nvml_library} is not that of driver {machine.kernel_module}"
        return [failed(NAME, detail, OTHER_LIBRARY)]
    return _read(facts, needed)


def _without(facts: Facts, machine: Machine, needed: bool) -> Finding:
    reason = str(facts.nvml_error)
    if "not installed" in reason:
        cure = "pip install nvidia-ml-py"
    elif "version mismatch" in reason:
        cure = f"after an update of the driver restart the machine; in an image {OTHER_LIBRARY}"
    else:
        cure = UTILITY
    there = bool(facts.gpus) or (machine.kernel_module is not None and "version mismatch" in reason)
    return absent(NAME, reason if there else f"{reason}, and no GPU", cure, needed or there)


def _is_shadowed(facts: Facts, machine: Machine) -> bool:
    """Return whether NVML belongs to another driver; its file is named after its driver."""
    match = re.search(r"\.so\.(\d{3}\.[\d.]+)$", facts.nvml_library or "")
    return bool(match and machine.kernel_module not in (None, "unknown", match[1]))


def _read(facts: Facts, needed: bool) -> list[Finding]:
    if not facts.gpus:
        return [absent(NAME, "NVML answers, but torch sees no GPU", "see check gpu", needed)]
    found = [_gpu(index, gpu) for index, gpu in enumerate(facts.gpus)]
    problems = [finding for finding in found if finding]
    return problems or [ok(NAME, f"driver {facts.driver}: memory of the device and of processes can be read")]


def _gpu(index: int, gpu: Gpu) -> Finding | None:
    reason = gpu.nvml_error or gpu.device_reason or gpu.process_reason
    if reason is None:
        return None
    if reason == NO_PROCESS:
        cure = HOST_PIDS
    elif "MIG" in reason or "Insufficient Permissions" in reason:
        cure = SLICE
    else:
        cure = UTILITY
    return warning(NAME, f"GPU {index}: {reason}; the record will have no such figure", cure)
