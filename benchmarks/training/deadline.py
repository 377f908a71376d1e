"""When a rank saves and stops: before the cell's deadline, when a signal asks for it, and every so often."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.training.checkpoint import Checkpoints, capture, restore
from benchmarks.training.limits import Limits
from resireduce.memory import measure_states

if TYPE_CHECKING:
    from benchmarks.training.trainer import Trainer

LOOK_SECONDS = 1.0
"""Ranks ask each other about so often; where a step takes longer, before every step."""
MOST_STEPS = 1000
"""Steps between two looks, however short they are."""
MARGIN = 2.0
"""The times still needed are taken this many times as long as the longest ones seen."""
SPARE_SECONDS = 2.0
"""For a process to end."""
SAVING_SHARE = 0.05
"""Checkpoints that are slow to write are written so seldom that they take at most this share of the time."""
DISK_BYTES_PER_SECOND = 1e8
"""How fast a first checkpoint is reckoned to be written: a slow disk."""
RECENT_STEPS = 20
FIRST_STEP_SECONDS = 1.0
"""What a step is reckoned to take before one was seen."""
NEVER = 1e18
"""Seconds left without a deadline: a number that can be sent."""


class Stopped(Exception):
    """Training stopped itself. Run again, it goes on."""


def catch_signals() -> list[int]:
    """From now on SIGTERM and SIGINT only enter their number into the list returned, which a Watch looks at."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: came.append(number))
    return came


@dataclass
class Watch:
    """Decides together with the other ranks. Without a folder, a deadline and signals it does nothing at all."""

    limits: Limits = field(default_factory=Limits)
    checkpoints: Checkpoints | None = None
    signals: list[int] | None = None
    """Numbers of the signals that came."""
    now: Callable[[], float] = time.time
    resumed_at: list[int] = field(default_factory=list)
    """Steps at which training went on from a checkpoint."""
    earlier_seconds: float = 0.0
    """Wall time of the runs before this one, as far as it was saved."""
    evaluation_seconds: float = 0.0
    """Longest so far."""
    checkpoint_seconds: float = 0.0
    """Of the last one; 0 before the first."""
    _estimated_seconds: float = 0.0
    """Of the first."""
    _first_step: int = 0
    _next_look: int = 0
    _saved_at: float = 0.0
    _too_late: bool = False
    """It was to stop before the deadline, but could save nothing: it may as well try to come to its end."""

    def begin(self, trainer: "Trainer") -> int:
        """Restore the trainer from the checkpoint, if there is one that can be used. The step to begin with."""
        self._saved_at = self.now()
        if self.checkpoints is None:
            return 0
        self._estimated_seconds = measure_states(trainer.optimizer).total / DISK_BYTES_PER_SECOND
        found = self.checkpoints.load()
        if found is None:
            return 0
        step, shared, own = found
        restore(trainer, shared, own)
        for name, value in own["watch"].items():
            setattr(self, name, value)
        self.resumed_at = [*self.resumed_at, step]
        self._first_step = self._next_look = step
        return step

    def before_step(self, trainer: "Trainer", step: int) -> None:
        """Save if it is time, and raise Stopped, on all ranks, if training must not go on with `step`."""
        if step < self._next_look or not self._watches:
            return
        signalled, left, need, save, wait = self._agree(trainer, step)
        self._next_look = step + int(wait)
        late = left < need and not self._too_late
        if not (signalled or late or save):
            return
        trainer.phase = "checkpoint"
        saved = step == self._first_step or self._save(trainer, step)  # there is nothing new at the first
        if signalled:
            self._stop(f"stopped by {signal.Signals(int(signalled)).name}", trainer, step, saved)
        if late and (saved or self.checkpoints is None):
            self._stop("stopped before its deadline", trainer, step, saved)
        self._too_late = self._too_late or late

    def _stop(self, what: str, trainer: "Trainer", step: int, saved: bool) -> None:
        where = f"{what} at step {step} of {trainer.schedule.steps}"
        if not saved:
            raise Stopped(f"{where}, and could write no checkpoint; run again")
        if "deadline" in what and step == self._first_step:
            raise Stopped(f"{where}, before it could take one more; run again with a later deadline")
        raise Stopped(f"{where}; run again to go on")

    @property
    def _watches(self) -> bool:
        return self.signals is not None or self.checkpoints is not None or self.limits.ends_at is not None

    def _agree(self, trainer: "Trainer", step: int) -> list[float]:
        """Signal, seconds left, seconds needed, whether to save, steps until the next look: of the rank worst off."""
        recent = trainer.clock.step_seconds[self._first_step :][-RECENT_STEPS:] or [FIRST_STEP_SECONDS]
        wait = max(1, min(MOST_STEPS, int(LOOK_SECONDS / median(recent))))
        saving = self.checkpoint_seconds or self._estimated_seconds
        need = wait * median(recent) + max(recent) + self.evaluation_seconds + saving
        left = NEVER if self.limits.ends_at is None else self.limits.ends_at - self.now()
        mine = [max(self.signals or [0]), -left, MARGIN * need + SPARE_SECONDS, self._save_is_due(step), -wait]
        rows = torch.tensor(mine, dtype=torch.float64, device=trainer.communicator.control_device)
        # Gathered, not reduced: every rank takes the greatest of the very same numbers.
        gathered = trainer.communicator.all_gather(rows, f"watch {step}").wait()
        worst = torch.stack(list(gathered)).amax(0).tolist()
        return [worst[0], -worst[1], worst[2], worst[3], -worst[4]]

    def _save_is_due(self, step: int) -> bool:
        every = self.limits.save_every_seconds
        if every is None or self.checkpoints is None or step == self._first_step:
            return False
        return self.now() - self._saved_at > max(every, self.checkpoint_seconds / SAVING_SHARE)

    def _save(self, trainer: "Trainer", step: int) -> bool:
        if self.checkpoints is None:
            return False
        started = time.perf_counter()
        shared, own = capture(trainer)
        own["watch"] = self._to_save()
        saved = self.checkpoints.save(step, shared, own)
        self.checkpoint_seconds = time.perf_counter() - started
        self._saved_at = self.now()
        return saved

    def _to_save(self) -> dict[str, Any]:
        wall_seconds = self.earlier_seconds + self.now() - self.limits.started_at
        times = {"evaluation_seconds": self.evaluation_seconds, "earlier_seconds": wall_seconds}
        return {**times, "resumed_at": self.resumed_at}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time what happens within as one evaluation."""
        started = time.perf_counter()
        yield
        self.evaluation_seconds = max(self.evaluation_seconds, time.perf_counter() - started)

    def summary(self) -> dict[str, Any]:
        """What a record says of it."""
        return {"resumed_at_steps": self.resumed_at, "earlier_seconds": self.earlier_seconds}
