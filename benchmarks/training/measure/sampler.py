"""A thread that samples a GPU's memory through NVML, which keeps no peaks of its own."""

import threading
import time
from collections.abc import Callable

from benchmarks.core.ladder import WARMUP, Sampling
from benchmarks.core.nvml import Reading

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
        self.device_bytes: dict[str, int] = {}
        """Most, by window."""
        self.process_bytes: dict[str, int] = {}
        """Most, by window."""
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
                    most[self.window] = max(found, most.get(self.window, 0))

    def _run(self) -> None:
        while not self._ended:
            self._wanted.wait(self.interval_seconds)
            self._wanted.clear()
            if not self._ended:
                self.sample()

    @property
    def sampling(self) -> Sampling:
        """Return how closely it has sampled so far."""
        return Sampling(
            interval_seconds=self.interval_seconds, count=self._count, largest_gap_seconds=self._largest_gap
        )
