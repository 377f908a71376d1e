"""Check driver: that it exists, can be reached, and is new enough for the CUDA that torch is built for."""

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.doctor.check_gpu import CUDA_BUILD
from benchmarks.doctor.finding import Finding, absent, failed, ok, warning
from benchmarks.doctor.known_faults import GPU_ACCESS
from benchmarks.doctor.machine_facts import Facts

NAME = "driver"
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
"""Exists wherever the machine has a driver, even in containers without access to its GPUs."""
CONTROL_DEVICE = Path("/dev/nvidiactl")
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Oldest driver for each major version of CUDA (NVIDIA, CUDA Compatibility, section Minor Version Compatibility)."""


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


def check(facts: Facts, machine: Machine, needed: bool = False) -> list[Finding]:
    """Return one finding. needed: a missing driver is a failure."""
    if facts.error:
        return [absent(NAME, facts.error, "see check gpu", needed)]
    if facts.cuda is None:
        return [_cpu_build(facts, machine, needed)]
    if machine.kernel_module and not (facts.libcuda and machine.control_device):
        lacking = f"not its {'device files' if facts.libcuda else 'library libcuda'}"
        detail = f"driver {machine.kernel_module} is here, {lacking}: started without access to the GPUs"
        return [failed(NAME, detail, f"{GPU_ACCESS}; or, meant so, RESIREDUCE_DEVICE=cpu")]
    if not facts.libcuda or facts.driver_cuda is None:
        reason = (
            f"libcuda is here, the driver does not answer: {facts.nvml_error}" if facts.libcuda else "no NVIDIA driver"
        )
        cure = f"a machine with a GPU and its driver; in a container {GPU_ACCESS}"
        return [absent(NAME, reason, cure, needed)]
    return [_compare(facts.driver, facts.driver_cuda, facts.cuda)]


def _cpu_build(facts: Facts, machine: Machine, needed: bool) -> Finding:
    reason = f"torch {facts.torch} is built for CPUs" if facts.torch else f"torch: {facts.torch_error}"
    if machine.kernel_module and facts.torch and not needed:
        detail = f"driver {machine.kernel_module} is here, but {reason}: cells train without a GPU"
        return warning(NAME, detail, f"{CUDA_BUILD}; or, meant so, RESIREDUCE_DEVICE=cpu")
    return absent(NAME, reason, CUDA_BUILD, needed)


def _compare(driver: str | None, newest: tuple[int, int], cuda: str) -> Finding:
    """Judge whether a driver that supports CUDA up to `newest` runs code built for `cuda`."""
    major, minor = (int(number) for number in cuda.split(".")[:2])
    found = f"driver {driver or 'unknown'} (CUDA {newest[0]}.{newest[1]})"
    if newest >= (major, minor):
        return ok(NAME, f"{found}, torch's CUDA is {cuda}")
    oldest = OLDEST_DRIVER.get(major)
    new_enough = oldest is None or driver is None or int(driver.split(".")[0]) >= oldest
    if newest[0] == major and new_enough:
        return ok(NAME, f"{found}, torch's CUDA is {cuda}: runs by minor version compatibility")
    update = f"a driver >= {oldest}" if oldest else f"a driver for CUDA {cuda}"
    compat = f"on data-centre GPUs also package cuda-compat-{major}-{minor}"
    cure = f"{update}, or an image with CUDA {newest[0]}; {compat}"
    return failed(NAME, f"{found} is too old for torch's CUDA {cuda}", cure)
