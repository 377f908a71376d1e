"""The costs of a step, measured in the first steps of training, for rules that merge messages by them."""

import time
import weakref
from functools import partial
from typing import Any

import numpy as np
import torch

from resireduce.core.bucket import Bucket, Slot
from resireduce.core.feedback import exactly
from resireduce.core.messages import Message
from resireduce.core.step import Exchange, LaunchQueue
from resireduce.merging.rules import Costs, line_through
from resireduce.start import broadcast_object

TIMED_STEPS = 5
"""Steps that are timed, after a first one that is not, in which memory and threads are new."""
SIZES, REPEATS = 4, 5
"""Number of message sizes by which the link is timed, and repeats of each."""


class Profiler:
    """Measures when tensors are ready, how long compression takes, and the link, and has `rule` make messages by that.

    On a GPU, in the steps that are timed, the host waits for the device at each tensor. The queue of `exchange` is
    given the costs, and the messages that follow from them.
    """

    def __init__(self, rule: str, exchange: Exchange):
        self._exchange, self._queue, self.feedback = exchange, exchange.queue, exchange.feedback
        self.rule: str | None = rule
        self._steps: list[dict[Slot, tuple[float, ...]]] = []  # ready, seconds of compression, bytes
        self._now: dict[Slot, tuple[float, float, int]] = {}
        self._taken = exchange.steps
        # Held weakly: what is dropped within the first steps is freed at once.
        self._queue.compress = partial(Profiler._timed, weakref.proxy(self))  # type: ignore[method-assign]

    def _timed(self, bucket: Bucket, step: int) -> None:
        """Have `bucket`, which has a single tensor, compressed, and note how long that takes, and when it is ready."""
        if bucket.slots[0].name in self.feedback.dense or self.feedback.warms_up:
            LaunchQueue.compress(self._queue, bucket, step)
            return
        (slot,), device = bucket.slots, bucket.slots[0].parameter.device
        began = _clock(device)
        LaunchQueue.compress(self._queue, bucket, step)
        ready, message = _clock(device), bucket.message
        self._now[slot] = ready, ready - began, message.nbytes if isinstance(message, Message) else 0

    def after_step(self) -> None:
        """Note the times of a step that was not skipped; once enough are timed, merge tensors by them.

        All ranks come here together: rank 0 decides, by the largest times of all ranks.
        """
        now, self._now = self._now, {}
        taken, self._taken = self._taken, self._exchange.steps
        slots = [slot for bucket in self._queue.buckets for slot in bucket.slots]
        order = [slot for slot in slots if slot.name not in self.feedback.dense]
        if self.rule is None or self._taken == taken or self.feedback.warms_up or not order:
            return
        first = min((ready for ready, _, _ in now.values()), default=0.0)
        self._steps.append({slot: (ready - first, *rest) for slot, (ready, *rest) in now.items()})
        if len(self._steps) <= TIMED_STEPS:
            return
        times = [[step[slot] for step in self._steps[1:] if slot in step] or [(0.0, 0.0, 0)] for slot in order]
        mine = np.array([np.median(one, axis=0) for one in times])
        ready, compress, nbytes = self._largest(mine).T
        latency, per_byte = self._largest(np.array(self._link(nbytes, order[0].parameter.device)))
        elements = [slot.template.numel() for slot in order]
        sizes, names = [int(size) for size in nbytes], [slot.name for slot in order]
        costs = Costs(float(latency), float(per_byte), names, ready.tolist(), compress.tolist(), sizes, elements)
        messages: list[list[str]] = broadcast_object(costs.messages(self.rule), self._queue.world)
        self.rule, self._steps, self._queue.costs = None, [], costs
        del self._queue.compress
        self._queue.merge(messages)

    @exactly
    def _largest(self, mine: np.ndarray) -> np.ndarray:
        """Return the largest of each number over all ranks."""
        world = self._queue.world
        flat = torch.from_numpy(mine.reshape(-1)).to(world.control_device)
        rows = world.all_gather(flat, "resireduce.profile").wait()
        return torch.stack(list(rows)).amax(0).cpu().numpy().reshape(mine.shape)

    def _link(self, nbytes: np.ndarray, device: torch.device) -> tuple[float, float]:
        """Return the latency, and the seconds per byte, of the collective that payloads use."""
        ranks, smallest = self.feedback.communicator, max(nbytes.min(), 64.0)
        launch: Any = ranks.all_reduce if self.feedback.compressor.collective == "all_reduce" else ranks.all_gather
        sizes = np.geomspace(smallest, max(nbytes.sum(), 2 * smallest), SIZES) // 8 * 8
        seconds = np.empty((SIZES, REPEATS))
        for place, repeat in np.ndindex(seconds.shape):
            buffer = torch.zeros(int(sizes[place]) // 4, device=device)
            ranks.all_reduce(torch.zeros(1, device=ranks.control_device), "resireduce.profile.start").wait()  # together
            began = _clock(device)
            launch(buffer, f"resireduce.profile.{place}").wait()
            seconds[place, repeat] = _clock(device) - began
        return line_through(sizes, np.median(seconds, axis=1))


def _clock(device: torch.device) -> float:
    """Return the time of a clock, in seconds, after `device` has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
