"""Reads memory while one rank trains, by torch's allocator and by NVML, and makes its ladder of it."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.devices import Idle, NvmlDevice, Reading
from benchmarks.core.rank_memory import EVALUATION, METHODS, STEADY, WARMUP, Rung
from benchmarks.training.measure.tracker import peak_resident_bytes, resident_bytes

NO_CUDA = "no CUDA device"
Windows = dict[str, int]
"""Most bytes, by window."""


def _keep_most(most: Windows, window: str, found: int) -> None:
    most[window] = max(found, most.get(window, 0))


@dataclass(frozen=True)
class Boundary:
    """Bytes at a step boundary with gradients, by the tensors and by the allocator."""

    states_bytes: int
    on_device_bytes: int
    buffers_bytes: int
    resident_bytes: int | None
    allocator: dict[str, int]


class Meter:
    """The measurements of one rank. Make it before the model is built, since memory used then is the baseline.

    Time is cut into windows: warmup, steady (training steps after it), evaluation.

    Args:
        device: the device that is trained on.
        nvml: its NVML device, or in one line why NVML cannot be used.
        idle: the device before CUDA began.
        ranks_on_device: how many ranks share it, this one included.
        cuda: `torch.cuda`, or a stand-in for it.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        nvml: NvmlDevice | str = NO_CUDA,
        idle: Idle | None = None,
        ranks_on_device: int = 1,
        cuda: Any = torch.cuda,
    ):
        self.device = device or torch.device("cpu")
        self.nvml, self.idle, self.ranks_on_device = nvml, idle, ranks_on_device
        self._cuda = cuda if self.device.type == "cuda" else None
        self.sampler = None if isinstance(nvml, str) else Sampler(nvml.read)
        self.resident_before = resident_bytes()
        self.allocator_before = self._allocator()
        if self._cuda:
            self._cuda.reset_peak_memory_stats(self.device)
        self.boundary: Boundary | None = None
        self.without_gradients_bytes: int | None = None
        self.workspaces_bytes = 0
        self.most: dict[str, Windows] = {"allocated": {}, "reserved": {}, "resident": {}}
        """Reserved memory that one window leaves cached counts in the next one from its start."""
        self.window = WARMUP

    def _allocator(self) -> dict[str, int]:
        """Wait for the device, and return what its allocator holds: requested bytes are those before rounding.

        Nothing without a GPU; 0 requested bytes if it does not count them (cudaMallocAsync).
        """
        if not self._cuda:
            return {}
        self._cuda.synchronize(self.device)
        stats = self._cuda.memory_stats(self.device)
        names = ("allocated", "reserved", "requested")
        return {name: int(stats.get(f"{name}_bytes.all.current", 0)) for name in names}

    def start(self) -> None:
        """Begin sampling; the allocator's first window has begun with the meter."""
        if self.sampler:
            self.sampler.start()

    def enter(self, window: str) -> None:
        """Begin a window of this name; peaks of all windows of one name count together."""
        _keep_most(self.most["resident"], self.window, peak_resident_bytes())
        if self._cuda:
            self._cuda.synchronize(self.device)
            stats = self._cuda.memory_stats(self.device)
            for name in ("allocated", "reserved"):
                _keep_most(self.most[name], self.window, int(stats.get(f"{name}_bytes.all.peak", 0)))
            self._cuda.reset_peak_memory_stats(self.device)
        if self.sampler:
            self.sampler.enter(window)
        self.window = window

    def step_done(self) -> None:
        """Ask for a sample at the end of a step."""
        if self.sampler:
            self.sampler.ask()

    def stop(self) -> None:
        """End the last window. Calling it again is harmless."""
        if self.sampler:
            self.sampler.stop()
        if self.window != "over":
            self.enter("over")

    def at_boundary(self, held: Mapping[str, Iterable[Tensor]], buffers: Iterable[Tensor] = ()) -> None:
        """Read memory after a step and before `zero_grad`.

        Args:
            held: the tensors of the model states, by kind, as resireduce.planning.memory.held_tensors returns them.
            buffers: the model's buffers.
        """
        tensors = {id(tensor): tensor for kind in held.values() for tensor in kind}.values()
        self.boundary = Boundary(
            states_bytes=sum(tensor.nbytes for tensor in tensors),
            on_device_bytes=sum(tensor.nbytes for tensor in tensors if tensor.device.type == self.device.type),
            buffers_bytes=sum(buffer.nbytes for buffer in buffers),
            resident_bytes=resident_bytes(),
            allocator=self._allocator(),
        )

    def without_gradients(self) -> None:
        """Read memory at the same or another step boundary, after `zero_grad(set_to_none=True)`.

        Where this torch can, cuBLAS's workspaces, which it holds until the end, are freed, to know their size.
        """
        if self._cuda:
            self.without_gradients_bytes = self._allocator()["allocated"]
            if release := getattr(torch._C, "_cuda_clearCublasWorkspaces", None):
                release()
                self.workspaces_bytes = self.without_gradients_bytes - self._allocator()["allocated"]

    def allocator_flags(self) -> tuple[str, ...]:
        """Return conditions that make the figures less comparable: memory ran out, and the cache had to be emptied."""
        counters = {"alloc-retries": "num_alloc_retries", "out-of-memory": "num_ooms"}
        stats = self._cuda.memory_stats(self.device) if self._cuda else {}
        return tuple(flag for flag, counter in counters.items() if int(stats.get(counter, 0)) > 0)


INTERVAL_SECONDS = 0.02
"""Interval of samples; it is short enough, since torch's allocator keeps what it has once reserved."""


class Sampler:
    """Calls `read` every `interval_seconds` and when asked, and keeps the maximum of each window of time.

    Args:
        read: must not raise.
    """

    def __init__(self, read: Callable[[], Reading], interval_seconds: float = INTERVAL_SECONDS):
        self._read, self.interval_seconds = read, interval_seconds
        self.window = WARMUP
        self.device_bytes: Windows = {}
        self.process_bytes: Windows = {}
        self.most_processes = 0
        """How many processes have been on the device at once."""
        self.last = Reading(device_reason="NVML was not read", process_reason="NVML was not read")
        self._times: tuple[float, float] | None = None  # of the first and the last sample
        self._count, self._largest_gap = 0, 0.0
        self._wanted, self._lock, self._ended = threading.Event(), threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="nvml-sampler", daemon=True)

    def start(self) -> None:
        """Take the first sample, and start the thread that takes others."""
        self.sample()
        self._thread.start()

    def ask(self) -> None:
        """Request a sample soon, without waiting for it."""
        self._wanted.set()

    def enter(self, window: str) -> None:
        """Take the last sample of the window, and the first of the next."""
        self.sample()
        self.window = window
        self.sample()

    def stop(self) -> None:
        """Take the last sample."""
        if self._ended:
            return
        self._ended = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()
        self.sample()

    def sample(self) -> None:
        """Take one sample."""
        with self._lock:
            reading, now = self._read(), time.monotonic()
            if self._times is not None:
                self._largest_gap = max(self._largest_gap, now - self._times[1])
            self._times = (self._times[0] if self._times else now, now)
            self._count, self.last = self._count + 1, reading
            self.most_processes = max(self.most_processes, len(reading.pids))
            for found, most in ((reading.device_bytes, self.device_bytes), (reading.process_bytes, self.process_bytes)):
                if found is not None:
                    _keep_most(most, self.window, found)

    def _run(self) -> None:
        while not self._ended:
            self._wanted.wait(self.interval_seconds)
            self._wanted.clear()
            if not self._ended:
                self.sample()

    @property
    def sampling(self) -> dict[str, float]:
        """Return how closely it has sampled so far."""
        counted = {"interval_seconds": self.interval_seconds, "count": self._count}
        return {**counted, "largest_gap_seconds": self._largest_gap}


OF_DEVICE = ("foreign-process", "shared-device", "no-idle-baseline")
"""Flags that concern what is in use on the device, not what NVML says this process holds."""
SUBTRACTED = "NVML, used memory of the device less its idle baseline, since NVML reports no process memory"


def make_ladder(meter: Meter) -> dict[str, Any]:
    """Return plain values: `ladder`, a list of rungs; `sampling`, how closely NVML was watched; and `difference`.

    Sampling is None without NVML, the difference between the model states and the allocator None without a GPU. Call it
    after the meter's `stop`, `at_boundary` and `without_gradients`.
    """
    return {
        "ladder": [rung.as_dict() for rung in rungs_of(meter)],
        "sampling": meter.sampler.sampling if meter.sampler else None,
        "difference": _difference(meter),
    }


def rungs_of(meter: Meter) -> list[Rung]:
    """Return all rungs, under the same conditions."""
    boundary = meter.boundary
    assert boundary is not None, "at_boundary() was not called"
    return [
        _rung("model_state_itemised", boundary.states_bytes, baseline_bytes=0),
        *_allocator_rungs(meter, boundary.allocator),
        *_nvml_rungs(meter),
        _rung("resident", boundary.resident_bytes, "this system has no /proc", baseline_bytes=meter.resident_before),
        _rung(
            "peak_resident",
            max(meter.most["resident"].values(), default=peak_resident_bytes()),
            baseline_bytes=meter.resident_before,
            warmup_bytes=meter.most["resident"].get(WARMUP),
        ),
    ]


def _allocator_rungs(meter: Meter, held: Mapping[str, int]) -> list[Rung]:
    names = ("allocated", "allocated_without_gradients", "peak_allocated", "peak_reserved")
    before = meter.allocator_before
    if not held:
        return [_rung(name, None, str(meter.nvml)) for name in names]
    flags, allocated = meter.allocator_flags(), before["allocated"]
    return [
        _rung(names[0], held["allocated"], baseline_bytes=allocated, flags=flags),
        _rung(names[1], meter.without_gradients_bytes, baseline_bytes=allocated, flags=flags),
        _peak(names[2], meter.most["allocated"], allocated, flags),
        _peak(names[3], meter.most["reserved"], before["reserved"], flags),
    ]


def _nvml_rungs(meter: Meter) -> list[Rung]:
    if meter.sampler is None or isinstance(meter.nvml, str):
        return [_rung(name, None, str(meter.nvml)) for name in ("nvml_process", "nvml_device")]
    sampler, before = meter.sampler, None if meter.idle is None else meter.idle.used_bytes
    conditions = {
        "foreign-process": bool(meter.idle and meter.idle.pids) or sampler.most_processes > meter.ranks_on_device,
        "shared-device": meter.ranks_on_device > 1,
        "no-idle-baseline": before is None,
        "mig": meter.nvml.is_mig,
    }
    flags = tuple(flag for flag, is_so in conditions.items() if is_so)
    device = _peak("nvml_device", sampler.device_bytes, before, flags, sampler.last.device_reason)
    if sampler.process_bytes:
        own = tuple(flag for flag in flags if flag not in OF_DEVICE)
        return [_peak("nvml_process", sampler.process_bytes, 0, own), device]
    return [_subtracted(meter, device, sampler.last.process_reason), device]


def _subtracted(meter: Meter, device: Rung, reason: str | None) -> Rung:
    """Return the device's memory minus that of the idle device, if only this rank can hold the difference."""
    flags, before = (*device.flags, "pid-namespace"), device.baseline_bytes
    if meter.ranks_on_device > 1 or "foreign-process" in flags or device.bytes is None or before is None:
        return _rung("nvml_process", None, reason, flags=flags)
    windows = {name: getattr(device, name) for name in ("bytes", "warmup_bytes", "evaluation_bytes")}
    less = {name: None if found is None else max(0, found - before) for name, found in windows.items()}
    return Rung(name="nvml_process", method=SUBTRACTED, baseline_bytes=0, flags=flags, **less)


def _difference(meter: Meter) -> dict[str, int] | None:
    """Return the gap between itemised model states and allocator, in bytes, at one step boundary with gradients.

    Some optimizers keep step counters on the host, which are not in states_bytes. The allocator rounds requests up to
    blocks of 512 bytes, and does not split the ends of large ones.
    """
    before, boundary = meter.allocator_before, meter.boundary
    if boundary is None or not boundary.allocator:
        return None
    held = boundary.allocator
    added = held["allocated"] - before["allocated"]
    # It is zero if the allocator does not count requests.
    rounding = added - (held["requested"] - before["requested"]) if held["requested"] else 0
    known = boundary.on_device_bytes + boundary.buffers_bytes + meter.workspaces_bytes + rounding
    return {
        "allocated_bytes": held["allocated"],
        "baseline_bytes": before["allocated"],
        "states_bytes": boundary.on_device_bytes,
        "buffers_bytes": boundary.buffers_bytes,
        "workspaces_bytes": meter.workspaces_bytes,
        "rounding_bytes": rounding,
        "other_bytes": added - known,
    }


def _rung(name: str, found: int | None, reason: str | None = None, **more: Any) -> Rung:
    reason = (reason or "not read") if found is None else None
    return Rung(name=name, method=METHODS[name], bytes=found, reason=reason, **more)


def _peak(
    name: str, most: Mapping[str, int], before: int | None, flags: tuple[str, ...], reason: str | None = None
) -> Rung:
    """Return a rung of peaks by window; for a run too short for steady steps, the warm-up's peak."""
    windows = {"warmup_bytes": most.get(WARMUP), "evaluation_bytes": most.get(EVALUATION)}
    return _rung(name, most.get(STEADY, most.get(WARMUP)), reason, baseline_bytes=before, flags=flags, **windows)
