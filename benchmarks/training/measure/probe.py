"""Observes one rank's training: memory by the meter, phases by their clock, and GPUs before CUDA begins."""

import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.devices import DEVICE_VARIABLE, Idle, Nvml, NvmlDevice, NvmlUnavailable, Reading, wanted_device
from benchmarks.core.rank_memory import EVALUATION, METHODS, STEADY, WARMUP, Rung
from benchmarks.core.sample_counts import WARMUP_STEPS
from benchmarks.training.measure.phases import PhaseClock
from benchmarks.training.measure.rank_facts import gpu_uuid
from benchmarks.training.measure.tracker import peak_resident_bytes, resident_bytes
from benchmarks.training.place import Place
from resireduce.core.optimizer import DistributedOptimizer

NO_CUDA = "no CUDA device"
INTERVAL_SECONDS = 0.02
"""Interval of samples of NVML; it is short enough, since torch's allocator keeps what it has once reserved."""
OF_DEVICE = ("foreign-process", "shared-device", "no-idle-baseline")
"""Flags that concern what is in use on the device, not what NVML says this process holds."""
SUBTRACTED = "NVML, used memory of the device less its idle baseline, since NVML reports no process memory"
COUNTERS = {"alloc-retries": "num_alloc_retries", "out-of-memory": "num_ooms"}
"""The allocator's counters of what makes figures less comparable, by flag: memory ran out, and it emptied its cache."""


class Meter:
    """The measurements of one rank. Make it before the model is built, since memory used then is the baseline.

    Time is cut into windows: warmup, steady (training steps after it), evaluation. A thread samples NVML.

    `nvml` is the NVML device of `device`, or in one line why there is none; `idle` is the device before CUDA began.
    `cuda` is torch.cuda, or a stand-in for it.
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
        self.nvml, self.idle, self._ranks_on_device = nvml, idle, ranks_on_device
        self._cuda = cuda if self.device.type == "cuda" else None
        self._resident_before, self._before = resident_bytes(), self._allocator()
        if self._cuda:
            self._cuda.reset_peak_memory_stats(self.device)
        self._window, self._most = WARMUP, defaultdict[str, dict[str, int]](dict)
        """Most bytes by kind and window; reserved memory that one window leaves cached counts in the next one."""
        self._last, self._most_processes = Reading(device_reason=str(nvml), process_reason=str(nvml)), 0
        self._wanted, self._lock, self._over = threading.Event(), threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="nvml-sampler", daemon=True)
        self._workspaces_bytes = 0

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
        if not isinstance(self.nvml, str):
            self.sample()
            self._thread.start()

    def sample(self) -> None:
        """Read NVML once, if it can be used."""
        if isinstance(self.nvml, str):
            return
        with self._lock:
            self._last = reading = self.nvml.read()
            self._most_processes = max(self._most_processes, len(reading.pids))
            for name, found in (("device", reading.device_bytes), ("process", reading.process_bytes)):
                if found is not None:
                    self._keep_most(name, found)

    def _run(self) -> None:
        while not self._over:
            self._wanted.wait(INTERVAL_SECONDS)
            self._wanted.clear()
            if not self._over:
                self.sample()

    def _keep_most(self, kind: str, found: int) -> None:
        self._most[kind][self._window] = max(found, self._most[kind].get(self._window, 0))

    def enter(self, window: str) -> None:
        """Begin a window of this name; peaks of all windows of one name count together."""
        self.sample()
        self._keep_most("resident", peak_resident_bytes())
        if self._cuda:
            self._cuda.synchronize(self.device)
            stats = self._cuda.memory_stats(self.device)
            for name in ("allocated", "reserved"):
                self._keep_most(name, int(stats.get(f"{name}_bytes.all.peak", 0)))
            self._cuda.reset_peak_memory_stats(self.device)
        self._window = window
        self.sample()

    def step_done(self) -> None:
        """Ask for a sample at the end of a step, without waiting for it."""
        self._wanted.set()

    def stop(self) -> None:
        """End the last window. Calling it again is harmless."""
        if not self._over:
            self._over = True
            self._wanted.set()
            if self._thread.is_alive():
                self._thread.join()
            self.enter("over")

    def at_boundary(self, held: Mapping[str, Iterable[Tensor]], buffers: Iterable[Tensor] = ()) -> None:
        """Read memory after a step and before `zero_grad`; `held` is as `held_tensors` returns it."""
        tensors = {id(tensor): tensor for kind in held.values() for tensor in kind}.values()
        self._states_bytes = sum(tensor.nbytes for tensor in tensors)
        self._on_device_bytes = sum(tensor.nbytes for tensor in tensors if tensor.device.type == self.device.type)
        self._buffers_bytes = sum(buffer.nbytes for buffer in buffers)
        self._resident, self._held = resident_bytes(), self._allocator()

    def without_gradients(self) -> None:
        """Read memory at the same or another step boundary, after `zero_grad(set_to_none=True)`.

        Where this torch can, cuBLAS's workspaces, which it holds until the end, are freed, to know their size.
        """
        if self._cuda:
            self._without_gradients = self._allocator()["allocated"]
            if release := getattr(torch._C, "_cuda_clearCublasWorkspaces", None):
                release()
                self._workspaces_bytes = self._without_gradients - self._allocator()["allocated"]

    def ladder(self) -> dict[str, Any]:
        """Return plain values: `ladder`, a list of rungs; and `difference`, None without a GPU.

        Call it after `stop`, `at_boundary` and `without_gradients`.
        """
        return {"ladder": [rung.as_dict() for rung in self.rungs()], "difference": self._difference()}

    def rungs(self) -> list[Rung]:
        """Return all rungs, under the same conditions."""
        before, resident = self._resident_before, self._most["resident"]
        return [
            _rung("model_state_itemised", self._states_bytes, baseline_bytes=0),
            *self._allocator_rungs(),
            *self._nvml_rungs(),
            _rung("resident", self._resident, baseline_bytes=before),
            _rung("peak_resident", max(resident.values()), baseline_bytes=before, warmup_bytes=resident.get(WARMUP)),
        ]

    def _allocator_rungs(self) -> list[Rung]:
        names = ("allocated", "allocated_without_gradients", "peak_allocated", "peak_reserved")
        if not self._cuda:
            return [_rung(name, None, str(self.nvml)) for name in names]
        stats, before = self._cuda.memory_stats(self.device), self._before
        flags = tuple(flag for flag, counter in COUNTERS.items() if int(stats.get(counter, 0)) > 0)
        return [
            _rung(names[0], self._held["allocated"], baseline_bytes=before["allocated"], flags=flags),
            _rung(names[1], self._without_gradients, baseline_bytes=before["allocated"], flags=flags),
            _peak(names[2], self._most["allocated"], before["allocated"], flags),
            _peak(names[3], self._most["reserved"], before["reserved"], flags),
        ]

    def _nvml_rungs(self) -> list[Rung]:
        if isinstance(self.nvml, str):
            return [_rung(name, None, self.nvml) for name in ("nvml_process", "nvml_device")]
        idle, before = self.idle, None if self.idle is None else self.idle.used_bytes
        conditions = {
            "foreign-process": bool(idle and idle.pids) or self._most_processes > self._ranks_on_device,
            "shared-device": self._ranks_on_device > 1,
            "no-idle-baseline": before is None,
            "mig": self.nvml.is_mig,
        }
        flags = tuple(flag for flag, is_so in conditions.items() if is_so)
        device = _peak("nvml_device", self._most["device"], before, flags, self._last.device_reason)
        if self._most["process"]:
            own = tuple(flag for flag in flags if flag not in OF_DEVICE)
            return [_peak("nvml_process", self._most["process"], 0, own), device]
        flags = (*flags, "pid-namespace")
        if before is None or device.bytes is None or self._ranks_on_device > 1 or "foreign-process" in flags:
            return [_rung("nvml_process", None, self._last.process_reason, flags=flags), device]
        # Only this rank can hold what the device has more than when it was idle.
        windows = {name: getattr(device, name) for name in ("bytes", "warmup_bytes", "evaluation_bytes")}
        less = {name: None if found is None else max(0, found - before) for name, found in windows.items()}
        return [Rung(name="nvml_process", method=SUBTRACTED, baseline_bytes=0, flags=flags, **less), device]

    def _difference(self) -> dict[str, int] | None:
        """Return the gap between itemised model states and allocator, in bytes, at one step boundary with gradients.

        Some optimizers keep step counters on the host, which are not in states_bytes. The allocator rounds requests up
        to blocks of 512 bytes, and does not split the ends of large ones.
        """
        held, before = self._held, self._before
        if not held:
            return None
        added = held["allocated"] - before["allocated"]
        # It is zero if the allocator does not count requests.
        rounding = added - (held["requested"] - before["requested"]) if held["requested"] else 0
        known = self._on_device_bytes + self._buffers_bytes + self._workspaces_bytes + rounding
        return {
            "allocated_bytes": held["allocated"],
            "baseline_bytes": before["allocated"],
            "states_bytes": self._on_device_bytes,
            "buffers_bytes": self._buffers_bytes,
            "workspaces_bytes": self._workspaces_bytes,
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


OBSERVED_STEPS = 50
"""Most steps after warm-up whose phases are timed; the others are only timed as a whole."""
OBSERVED_SHARE = 4
"""At most one in this many steps after warm-up, so that the median step is not slowed by being observed."""


@dataclass
class Probe:
    """Observes training from `start` to the meter's `stop`; it counts only the steps of this process."""

    meter: Meter = field(default_factory=Meter)
    phases: PhaseClock = field(default_factory=PhaseClock)
    warmup_steps: int = WARMUP_STEPS
    observed_steps: int = OBSERVED_STEPS
    steps_done: int = 0

    def start(self, steps: int) -> None:
        """Begin to observe a run of `steps` steps; the first half of a short one is warm-up."""
        self.warmup_steps = min(WARMUP_STEPS, steps // 2)
        self.observed_steps = min(OBSERVED_STEPS, max(1, (steps - self.warmup_steps) // OBSERVED_SHARE))
        self.meter.start()

    @contextmanager
    def step(self, optimizer: DistributedOptimizer) -> Iterator[None]:
        """Observe one training step."""
        after_warmup = self.steps_done - self.warmup_steps
        if after_warmup == 0:
            self.meter.enter(STEADY)
        with self.phases.step(optimizer) if 0 <= after_warmup < self.observed_steps else nullcontext():
            yield
        self.steps_done += 1
        self.meter.step_done()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Keep the memory of an evaluation apart from that of training steps."""
        self.meter.enter(EVALUATION)
        yield
        self.meter.enter(STEADY if self.steps_done > self.warmup_steps else WARMUP)

    def result(self, optimizer: DistributedOptimizer) -> dict[str, Any]:
        """Drop the gradients, and return the ladder and the medians of the phases as plain values."""
        optimizer.zero_grad(set_to_none=True)
        self.meter.without_gradients()
        return self.meter.ladder() | {"phase_seconds": self.phases.median_seconds()}


@dataclass(frozen=True)
class Before:
    """All GPUs as they were before this process used any; only CUDA knows which of them it will use."""

    nvml: Nvml | None = None
    reason: str = NO_CUDA
    """Why NVML cannot be used, if so."""
    idle: dict[str, Idle] = field(default_factory=dict)
    """State of each GPU, by UUID."""

    @property
    def driver(self) -> str | None:
        """The driver's version."""
        return None if self.nvml is None else self.nvml.driver_version()


def look_before_cuda(place: Place) -> Before:
    """Look at all GPUs, if this rank will train on one. Call it before joining the group of ranks.

    Joining waits for all ranks, so no rank sees memory that another has already begun to use.
    """
    if place.device.type != "cuda":
        return Before(reason=f"trained on the CPU ({DEVICE_VARIABLE}=cpu)" if wanted_device() == "cpu" else NO_CUDA)
    try:
        nvml = Nvml.load()
        return Before(nvml, idle=nvml.idle())
    except NvmlUnavailable as error:
        return Before(reason=str(error))


def make_meter(place: Place, before: Before) -> Meter:
    """Make the meter of this rank. On a GPU, CUDA begins here at the latest; make the model afterwards."""
    device = place.device
    torch.zeros(1, device=device)  # makes the context before anything is measured
    if before.nvml is None:
        return Meter(device, before.reason, None, place.ranks_on_device)
    try:
        found = before.nvml.device(str(gpu_uuid(device)), device.index or 0, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except NvmlUnavailable as error:
        return Meter(device, str(error), None, place.ranks_on_device)
    return Meter(device, found, before.idle.get(found.uuid), place.ranks_on_device)
