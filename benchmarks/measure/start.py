"""What has to be looked at before CUDA begins, and the probe that is made of it."""

import os
from dataclasses import dataclass, field

import torch

from benchmarks.measure.facts import gpu_uuid
from benchmarks.measure.meter import NO_CUDA, Meter
from benchmarks.measure.nvml import Idle, Nvml, NvmlDevice, NvmlUnavailable
from benchmarks.measure.phases import CudaMarks, PhaseClock
from benchmarks.measure.probe import Probe
from benchmarks.training.devices import DEVICE_VARIABLE, Place, wanted_device


@dataclass(frozen=True)
class Before:
    """All GPUs as they were before this process used any; which of them it will have, CUDA alone can say."""

    nvml: Nvml | None
    reason: str
    """Why NVML cannot be asked, where it cannot."""
    idle: dict[str, Idle] = field(default_factory=dict)
    """By UUID."""

    @property
    def driver(self) -> str | None:
        """The driver's version."""
        return None if self.nvml is None else self.nvml.driver_version()


def look_before_cuda(place: Place, nvml: Nvml | None = None) -> Before:
    """Look at all GPUs, if this rank will train on one. The group of ranks must not have been joined yet.

    Joining waits for all ranks, so that none of them sees what another has begun to use. `nvml`: not that of this
    machine.
    """
    if place.device.type != "cuda":
        chosen = wanted_device() == "cpu"
        return Before(None, f"trained on the CPU ({DEVICE_VARIABLE}=cpu)" if chosen else NO_CUDA)
    try:
        nvml = nvml or Nvml.load()
        return Before(nvml, "", nvml.idle())
    except NvmlUnavailable as error:
        return Before(None, str(error))


def make_meter(place: Place, before: Before) -> Meter:
    """Make the meter of this rank. On a GPU CUDA begins here, at the latest; make the model afterwards."""
    device = place.device
    if device.type != "cuda":
        return Meter(device, before.reason)
    found: NvmlDevice | str = before.reason
    if before.nvml is not None:
        try:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            found = before.nvml.device(str(gpu_uuid(device)), device.index or 0, visible)
        except NvmlUnavailable as error:
            found = str(error)
    torch.zeros(1, device=device)  # the context is there before anything is measured
    idle = None if isinstance(found, str) else before.idle.get(found.uuid)
    return Meter(device, found, idle, place.ranks_on_device)


def make_probe(place: Place, before: Before) -> Probe:
    """Make what watches this rank: its meter, and a clock of phases that suits the device."""
    marks = CudaMarks(place.device) if place.device.type == "cuda" else None
    return Probe(make_meter(place, before), PhaseClock(marks))
