"""Makes the ladder of one rank from the readings of its meter."""

from collections.abc import Mapping
from typing import Any

from benchmarks.core.ladder import EVALUATION, METHODS, STEADY, WARMUP, Difference, Ladder, Rung
from benchmarks.core.nvml import V1, NvmlDevice
from benchmarks.training.measure.meter import Meter
from benchmarks.training.measure.sampler import Sampler
from benchmarks.training.measure.tracker import peak_resident_bytes

OF_DEVICE = ("foreign-process", "shared-device", "no-idle-baseline")
"""Flags that concern what is in use on the device, not what NVML says this process holds."""
SUBTRACTED = "NVML, used memory of the device less its idle baseline, since NVML reports no process memory"


def make_ladder(meter: Meter) -> Ladder:
    """Return all rungs. Call it after the meter's `stop`, `at_boundary` and `without_gradients`."""
    assert meter.boundary is not None, "at_boundary() was not called"
    itemised = _rung("model_state_itemised", meter.boundary.states_bytes, baseline_bytes=0)
    return Ladder(
        rungs=(itemised, *_allocator_rungs(meter), *_nvml_rungs(meter), *_host_rungs(meter)),
        sampling=meter.sampler.sampling if meter.sampler else None,
        difference=_difference(meter),
    )


def _allocator_rungs(meter: Meter) -> list[Rung]:
    names = ("allocated", "allocated_without_gradients", "peak_allocated", "peak_reserved")
    before, held = meter.allocator_before, None if meter.boundary is None else meter.boundary.allocator
    if meter.allocator is None or before is None or held is None:
        return [_rung(name, None, reason=str(meter.nvml)) for name in names]
    flags, allocated = tuple(meter.allocator.flags()), before.allocated_bytes
    return [
        _rung(names[0], held.allocated_bytes, baseline_bytes=allocated, flags=flags),
        _rung(names[1], meter.without_gradients_bytes, baseline_bytes=allocated, flags=flags),
        _peak(names[2], meter.allocator.allocated_bytes, allocated, flags),
        _peak(names[3], meter.allocator.reserved_bytes, before.reserved_bytes, flags),
    ]


def _nvml_rungs(meter: Meter) -> list[Rung]:
    if meter.sampler is None or isinstance(meter.nvml, str):
        return [_rung(name, None, reason=str(meter.nvml)) for name in ("nvml_process", "nvml_device")]
    sampler, before = meter.sampler, None if meter.idle is None else meter.idle.used_bytes
    flags = _nvml_flags(meter, meter.nvml, sampler)
    device = _peak("nvml_device", sampler.device_bytes, before, flags, sampler.last.device_reason)
    if sampler.process_bytes:
        own = tuple(flag for flag in flags if flag not in OF_DEVICE)
        return [_peak("nvml_process", sampler.process_bytes, 0, own), device]
    return [_subtracted(meter, device, sampler.last.process_reason), device]


def _subtracted(meter: Meter, device: Rung, reason: str | None) -> Rung:
    """Return the device's memory minus that of the idle device, if only this rank can hold the difference."""
    flags, before = (*device.flags, "pid-namespace"), device.baseline_bytes
    if meter.ranks_on_device > 1 or "foreign-process" in flags or device.bytes is None or before is None:
        return _rung("nvml_process", None, reason=reason, flags=flags)
    warmup, evaluation = (
        None if found is None else max(0, found - before) for found in (device.warmup_bytes, device.evaluation_bytes)
    )
    return Rung(
        name="nvml_process",
        method=SUBTRACTED,
        bytes=max(0, device.bytes - before),
        baseline_bytes=0,
        warmup_bytes=warmup,
        evaluation_bytes=evaluation,
        flags=flags,
    )


def _nvml_flags(meter: Meter, nvml: NvmlDevice, sampler: Sampler) -> tuple[str, ...]:
    found = {
        "foreign-process": bool(meter.idle and meter.idle.pids) or sampler.most_processes > meter.ranks_on_device,
        "shared-device": meter.ranks_on_device > 1,
        "no-idle-baseline": meter.idle is None or meter.idle.used_bytes is None,
        "mig": nvml.is_mig,
        V1: not nvml.knows_reserved,
    }
    return tuple(flag for flag, is_so in found.items() if is_so)


def _host_rungs(meter: Meter) -> list[Rung]:
    before, held = meter.resident_before, None if meter.boundary is None else meter.boundary.resident_bytes
    peaks = meter.peak_resident_bytes
    most = max(peaks.values(), default=peak_resident_bytes())
    return [
        _rung("resident", held, "this system has no /proc", baseline_bytes=before),
        _rung("peak_resident", most, baseline_bytes=before, warmup_bytes=peaks.get(WARMUP)),
    ]


def _difference(meter: Meter) -> Difference | None:
    before, boundary = meter.allocator_before, meter.boundary
    if before is None or boundary is None or boundary.allocator is None:
        return None
    held = boundary.allocator
    added = held.allocated_bytes - before.allocated_bytes
    # It is zero if the allocator does not count requests.
    rounding = added - (held.requested_bytes - before.requested_bytes) if held.requested_bytes else 0
    known = boundary.on_device_bytes + boundary.buffers_bytes + meter.workspaces_bytes + rounding
    return Difference(
        allocated_bytes=held.allocated_bytes,
        baseline_bytes=before.allocated_bytes,
        states_bytes=boundary.on_device_bytes,
        buffers_bytes=boundary.buffers_bytes,
        workspaces_bytes=meter.workspaces_bytes,
        rounding_bytes=rounding,
        other_bytes=added - known,
    )


def _rung(name: str, found: int | None, reason: str | None = None, **more: Any) -> Rung:
    if found is None:
        return Rung(name=name, method=METHODS[name], reason=reason or "not read", **more)
    return Rung(name=name, method=METHODS[name], bytes=found, **more)


def _peak(
    name: str, most: Mapping[str, int], before: int | None, flags: tuple[str, ...], reason: str | None = None
) -> Rung:
    """Return a rung of peaks by window; for a run too short for steady steps, the warm-up's peak."""
    windows = {"warmup_bytes": most.get(WARMUP), "evaluation_bytes": most.get(EVALUATION)}
    return _rung(name, most.get(STEADY, most.get(WARMUP)), reason, baseline_bytes=before, flags=flags, **windows)
