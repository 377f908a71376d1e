"""When a rank saves and stops, and its checkpoints, from which a cell is resumed bit for bit.

It saves before stopping, and at intervals; it stops before the cell's deadline, or on a signal. A checkpoint is a file
of shared state, one for each rank, and a JSON written last.
"""

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from zipfile import ZipFile

import torch

from benchmarks.core.files import load_json, replacing, save_json
from benchmarks.core.stop_policy import MANIFEST, Limits
from benchmarks.training.tasks.task import Task
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator

State = dict[str, Any]


@dataclass
class Checkpoints:
    """One cell's checkpoint, as one of its ranks reads and writes it. All ranks call the methods together."""

    folder: Path
    content: Mapping[str, Any]
    """By name, what the run must have in common with the run that saved it."""
    name: str
    """Name of the cell, for messages."""
    communicator: Communicator

    def save(self, step: int, shared: State, own: State) -> None:
        """Write a checkpoint from which training resumes at `step`; the previous one stays until all is on the disk.

        Rank 0 writes the shared state. If a rank cannot write its files, it says why, and the previous one stays.
        """
        rank, world_size, reason = self.communicator.rank, self.communicator.world_size, ""
        try:
            for part, state in ({f"rank{rank}": own} | ({"shared": shared} if rank == 0 else {})).items():
                with replacing(self._file(step, part)) as file:
                    torch.save(state, file)
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
        failed = self._gather(int(bool(reason)), "checkpoint saved")
        if reason and failed.index(1) == rank:
            line = f"{self.name}: no checkpoint could be written to {self.folder} ({reason}); training goes on"
            print(line, file=sys.stderr, flush=True)
        if rank == 0 and not any(failed):
            # The JSON names the step: from here on the new files count instead of the old ones.
            save_json({"step": step, "world_size": world_size, "content": self.content}, self.folder / MANIFEST)
            for old in self.folder.iterdir():
                if not old.name.startswith((f"step{step}.", MANIFEST)):
                    old.unlink()

    def load(self) -> tuple[int, State, State] | None:
        """Read step, shared and own state; None if a rank cannot use the checkpoint, which says why in one line."""
        found = reason = None
        if (self.folder / MANIFEST).exists():
            try:
                found = self._read()
            except Exception as error:  # readers of archives and pickles may raise anything
                reason = " ".join(str(error).split())[:200] or type(error).__name__
        usable = self._gather(int(found is not None), "checkpoint load")
        if reason and usable.index(0) == self.communicator.rank:
            line = f"{self.name}: the checkpoint in {self.folder} cannot be used ({reason}); the cell starts afresh"
            print(line, file=sys.stderr, flush=True)
        return found if all(usable) else None

    def _read(self) -> tuple[int, State, State]:
        manifest = load_json(self.folder / MANIFEST)
        there = {**manifest["content"], "world_size": manifest["world_size"]}
        wanted = {**self.content, "world_size": self.communicator.world_size}
        if differ := [key for key in {**wanted, **there} if wanted.get(key) != there.get(key)]:
            raise ValueError(f"of other content: {', '.join(differ)}")
        step, states = int(manifest["step"]), list[State]()
        for part in ("shared", f"rank{self.communicator.rank}"):
            path = self._file(step, part)
            with ZipFile(path) as archive:  # torch.load does not compare the check sums that torch.save writes
                if damaged := archive.testzip():
                    raise ValueError(f"{damaged} in {path.name} is damaged")
            states.append(torch.load(path, map_location="cpu", weights_only=True))
        return step, states[0], states[1]

    def _file(self, step: int, part: str) -> Path:
        return self.folder / f"step{step}.{part}.pt"

    def _gather(self, value: int, what: str) -> list[int]:
        mine = torch.tensor([value], device=self.communicator.control_device)
        return [int(theirs) for theirs in self.communicator.all_gather(mine, what).wait()]


LOOK_SECONDS = 1.0
"""Time between two looks, in which ranks ask each other; if steps take longer, they look before every step."""
MARGIN = 2.0
"""The time still needed is estimated as this multiple of the longest times seen."""
SPARE_SECONDS = 2.0
"""Time for a process to end."""
RECENT_STEPS = 20
DISK_BYTES_PER_SECOND = 1e8
"""Assumed speed of writing the first checkpoint: that of a slow disk."""
FIRST_STEP_SECONDS = 1.0
"""Assumed time of a step before one has been measured."""

Capture = Callable[[], tuple[State, State]]
"""Returns the state to be saved: the one that all ranks share, and this rank's own."""


class Stopped(Exception):
    """Training stopped itself. The next run resumes it."""


def catch_signals() -> list[int]:
    """Have SIGTERM and SIGINT only append their number to the returned list, which a Watch looks at."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: came.append(number))
    return came


@dataclass
class Watch:
    """Decides with the other ranks when to save and stop. Without folder, deadline and signals it does nothing."""

    limits: Limits = field(default_factory=Limits)
    communicator: Communicator = field(default_factory=LocalCommunicator)
    checkpoints: Checkpoints | None = None
    signals: list[int] | None = None
    """Numbers of the signals received."""
    now: Callable[[], float] = time.time
    resumed_at: list[int] = field(default_factory=list)
    """Steps at which training resumed from a checkpoint."""
    earlier_seconds: float = 0.0
    """Wall time of the earlier runs, up to their last checkpoint."""
    evaluation_seconds: float = 0.0
    """Longest so far."""
    checkpoint_seconds: float = 0.0
    """Seconds that the last checkpoint took to write; before the first, an estimate."""
    _first_step: int = 0
    _next_look: int = 0
    _saved_at: float = 0.0

    def join(self, communicator: Communicator, name: str, task: Task) -> None:
        """Reach the other ranks by `communicator`, and keep checkpoints of the cell `name` if there is a folder."""
        self.communicator = communicator
        if self.limits.folder is not None and self.checkpoints is None:
            content = {**self.limits.content, "data": task.data_hash}
            self.checkpoints = Checkpoints(self.limits.folder, content, name, communicator)

    def begin(self, states_bytes: int = 0) -> tuple[int, State, State]:
        """Return the first step, and the shared and own state to restore before it: empty at a fresh start.

        states_bytes: of the model states, by which the time of the first checkpoint is estimated.
        """
        self._saved_at = self.now()
        self.checkpoint_seconds = 0.0 if self.checkpoints is None else states_bytes / DISK_BYTES_PER_SECOND
        found = None if self.checkpoints is None else self.checkpoints.load()
        if found is None:
            return 0, {}, {}
        step, shared, own = found
        for name, value in own["watch"].items():
            setattr(self, name, value)
        self.resumed_at = [*self.resumed_at, step]
        self._first_step = self._next_look = step
        return step, shared, own

    def before_step(self, step: int, steps: int, step_seconds: Sequence[float], capture: Capture) -> None:
        """Save if it is time, and raise Stopped, on all ranks, if training must not go on with `step` of `steps`."""
        watches = self.signals is not None or self.checkpoints is not None or self.limits.ends_at is not None
        if step < self._next_look or not watches:
            return
        recent = list(step_seconds[self._first_step :][-RECENT_STEPS:]) or [FIRST_STEP_SECONDS]
        wait = max(1, int(LOOK_SECONDS / median(recent)))
        longest = wait * median(recent) + max(recent) + self.evaluation_seconds + self.checkpoint_seconds
        ends_at, every = self.limits.ends_at, self.limits.save_every_seconds
        late = ends_at is not None and ends_at - self.now() < MARGIN * longest + SPARE_SECONDS
        due = every is not None and self.now() - self._saved_at > every
        mine = torch.tensor([max(self.signals or [0]), late, due, -wait], device=self.communicator.control_device)
        gathered = self.communicator.all_gather(mine, f"watch {step}").wait()  # not reduced, so that all take the same
        signalled, stops, saves, less = (int(one) for one in torch.stack(list(gathered)).amax(0))
        self._next_look = step - less
        if self.checkpoints is not None and step > self._first_step and (signalled or stops or saves):
            self._save(self.checkpoints, step, capture)
        if signalled or stops:
            why = f"by {signal.Signals(signalled).name}" if signalled else "before its deadline"
            raise Stopped(f"stopped {why} at step {step} of {steps}; run again to go on")

    def _save(self, checkpoints: Checkpoints, step: int, capture: Capture) -> None:
        started = time.perf_counter()
        shared, own = capture()
        wall_seconds = self.earlier_seconds + self.now() - self.limits.started_at
        watch = {"evaluation_seconds": self.evaluation_seconds, "earlier_seconds": wall_seconds}
        checkpoints.save(step, shared, {**own, "watch": {**watch, "resumed_at": self.resumed_at}})
        self.checkpoint_seconds = time.perf_counter() - started
        self._saved_at = self.now()
