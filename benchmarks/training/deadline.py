"""When a rank saves and stops, and its checkpoints, from which a cell is resumed bit for bit.

It saves before stopping, and at intervals; it stops before the cell's deadline, or on a signal. A checkpoint is a file
of shared state, one for each rank, and a JSON written last.
"""

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import nn

from benchmarks.core.files import load_json, save_json
from benchmarks.core.stop_policy import MANIFEST, Limits
from benchmarks.training.measure.phases import StepClock
from benchmarks.training.tasks.task import Task
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.core.optimizer import DistributedOptimizer

State = dict[str, Any]


def capture(
    model: nn.Module, optimizer: DistributedOptimizer, clock: StepClock, history: list[list[float | None]]
) -> tuple[State, State]:
    """Return the state that all ranks share and this rank's own state. Tensors are not copied."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    values, device = model.state_dict(), next(model.parameters()).device
    random = {"cpu": torch.get_rng_state()}  # what dropout draws from
    if device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(device)
    shared = {
        "parameters": {name: value for name, value in values.items() if name in names},
        "optimizer": optimizer.state_dict(),
    }
    own = {
        # Batch norm's running statistics differ between ranks.
        "buffers": {name: value for name, value in values.items() if name not in names},
        "residuals": optimizer.residual_state_dict(),
        "random": random,
        "clock": asdict(clock),
        "history": history,
    }
    return shared, own


def restore(model: nn.Module, optimizer: DistributedOptimizer, clock: StepClock, shared: State, own: State) -> None:
    """Restore the states of `capture` in a newly built training; the caller restores the history."""
    model.load_state_dict({**shared["parameters"], **own["buffers"]})
    optimizer.load_state_dict(shared["optimizer"])
    optimizer.load_residual_state_dict(own["residuals"])
    torch.set_rng_state(own["random"]["cpu"])
    if "cuda" in own["random"]:
        torch.cuda.set_rng_state(own["random"]["cuda"], next(model.parameters()).device)
    for name, value in own["clock"].items():
        setattr(clock, name, value)


BUILT_IN = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError)
UNREADABLE = (*BUILT_IN, pickle.UnpicklingError, BadZipFile)
"""Errors raised when reading a file that is missing, truncated or of another kind."""
NOTHING, READ, REFUSED = range(3)


@dataclass
class Checkpoints:
    """One cell's checkpoint, as one of its ranks reads and writes it. All ranks call the methods together."""

    folder: Path
    content: Mapping[str, Any]
    """By name, what the run must have in common with the run that saved it."""
    name: str
    """Name of the cell, for messages."""
    communicator: Communicator

    def save(self, step: int, shared: State, own: State) -> bool:
        """Write a checkpoint from which training resumes at `step`; the previous one stays until all is on the disk.

        Rank 0 writes the shared state. Returns whether it was written; if not, a rank says in one line why.
        """
        rank = self.communicator.rank
        parts = {f"rank{rank}": own} | ({"shared": shared} if rank == 0 else {})
        if not self._all_did("save", lambda: self._write(step, parts)):
            with suppress(OSError):
                for part in parts:
                    self._file(step, part).unlink(missing_ok=True)
            return False
        # The JSON names the step: from here on the new files count instead of the old ones.
        manifest = {"step": step, "world_size": self.communicator.world_size, "content": self.content}
        return self._all_did("finish", lambda: self._finish(manifest) if rank == 0 else None)

    def load(self) -> tuple[int, State, State] | None:
        """Read step, shared and own state. If no checkpoint can be used, say why in one line and return None."""
        status, reason, found = NOTHING, "", None
        try:
            manifest = load_json(self.folder / MANIFEST)
            there = {**manifest["content"], "world_size": manifest["world_size"]}
            wanted = {**self.content, "world_size": self.communicator.world_size}
            differ = [key for key in {**wanted, **there} if wanted.get(key) != there.get(key)]
            if differ:
                status, reason = REFUSED, f"is of other content ({', '.join(differ)})"
            else:
                step = int(manifest["step"])
                found = (step, self._read(step, "shared"), self._read(step, f"rank{self.communicator.rank}"))
                status = READ
        except (FileNotFoundError, NotADirectoryError) as error:
            if Path(error.filename).name != MANIFEST:
                status, reason = REFUSED, f"lacks {Path(error.filename).name}"
        except UNREADABLE as error:
            status, reason = REFUSED, f"cannot be read ({_one_line(error)})"
        statuses = self._gather(status, "checkpoint load")
        if REFUSED in statuses and statuses.index(REFUSED) == self.communicator.rank:
            self._say(f"the checkpoint in {self.folder} {reason}; the cell starts afresh")
        return found if set(statuses) == {READ} else None

    def _write(self, step: int, parts: Mapping[str, State]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for part, state in parts.items():
            temporary = self.folder / f".{part}.tmp"
            try:
                with temporary.open("wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self._file(step, part))
            except BaseException:
                with suppress(OSError):  # the first error is reported, not this one
                    temporary.unlink(missing_ok=True)
                raise

    def _finish(self, manifest: State) -> None:
        save_json(manifest, self.folder / MANIFEST)
        for file in self.folder.glob("step*.pt"):
            if not file.name.startswith(f"step{manifest['step']}."):
                file.unlink()

    def _read(self, step: int, part: str) -> State:
        path = self._file(step, part)
        with ZipFile(path) as archive:  # torch.load does not compare the check sums that torch.save writes
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} in {path.name} is damaged")
        state: State = torch.load(path, map_location="cpu", weights_only=True)
        return state

    def _file(self, step: int, part: str) -> Path:
        return self.folder / f"step{step}.{part}.pt"

    def _all_did(self, what: str, work: Callable[[], None]) -> bool:
        """Do this rank's work, and return whether all ranks succeeded. The first that failed says why."""
        reason = ""
        try:
            work()
        except (OSError, RuntimeError) as error:
            reason = _one_line(error)
        failed = self._gather(int(bool(reason)), f"checkpoint {what}")
        if reason and failed.index(1) == self.communicator.rank:
            self._say(f"no checkpoint could be written to {self.folder} ({reason})")
        return not any(failed)

    def _gather(self, value: int, what: str) -> list[int]:
        mine = torch.tensor([value], device=self.communicator.control_device)
        return [int(theirs) for theirs in self.communicator.all_gather(mine, what).wait()]

    def _say(self, line: str) -> None:
        print(f"{self.name}: {line}", file=sys.stderr, flush=True)


def _one_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).splitlines()[0].split())


LOOK_SECONDS = 1.0
"""Time between two looks, in which ranks ask each other; if steps take longer, they look before every step."""
MOST_STEPS = 1000
"""Largest number of steps between two looks, however short the steps are."""
MARGIN = 2.0
"""The time still needed is estimated as this multiple of the longest times seen."""
SPARE_SECONDS = 2.0
"""Time for a process to end."""
SAVING_SHARE = 0.05
"""Slow checkpoints are written so seldom that they take at most this share of the time."""
DISK_BYTES_PER_SECOND = 1e8
"""Assumed speed of writing the first checkpoint: that of a slow disk."""
RECENT_STEPS = 20
FIRST_STEP_SECONDS = 1.0
"""Assumed time of a step before one has been measured."""
NEVER = 1e18
"""Seconds left without a deadline: a number that can be sent."""

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
    """Reaches the other ranks."""
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
    """Seconds that the last checkpoint took to write; 0 before the first."""
    _estimated_seconds: float = 0.0
    """Estimated seconds that the first checkpoint takes to write."""
    _first_step: int = 0
    _next_look: int = 0
    _saved_at: float = 0.0
    _too_late: bool = False
    """It should have stopped before the deadline, but could not save: it may as well try to finish."""

    def join(self, communicator: Communicator, name: str, task: Task) -> None:
        """Reach the other ranks by `communicator`, and keep checkpoints of the cell `name` if there is a folder."""
        self.communicator = communicator
        if self.limits.folder is not None and self.checkpoints is None:
            content = {**self.limits.content, "data": task.data_hash}
            self.checkpoints = Checkpoints(self.limits.folder, content, name, communicator)

    def begin(self, states_bytes: int) -> tuple[int, State, State]:
        """Return the first step, and the shared and own state to restore before it: empty at a fresh start.

        The time of the first checkpoint is estimated from the size of the model states, `states_bytes`.
        """
        self._saved_at = self.now()
        if self.checkpoints is None:
            return 0, {}, {}
        self._estimated_seconds = states_bytes / DISK_BYTES_PER_SECOND
        found = self.checkpoints.load()
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
        signalled, left, need, save, wait = self._agree(step, step_seconds)
        self._next_look = step + int(wait)
        late = left < need and not self._too_late
        if not (signalled or late or save):
            return
        saved = step == self._first_step or self._save(step, capture)  # at the first step there is nothing new
        where = f"at step {step} of {steps}"
        if signalled:
            self._stop(f"stopped by {signal.Signals(int(signalled)).name} {where}", saved)
        if late and step == self._first_step:
            raise Stopped(
                f"stopped before its deadline {where}, before it could take one more; run again with a later deadline"
            )
        if late and (saved or self.checkpoints is None):
            self._stop(f"stopped before its deadline {where}", saved)
        self._too_late = self._too_late or late

    def _stop(self, what: str, saved: bool) -> None:
        raise Stopped(f"{what}; run again to go on" if saved else f"{what}, and could write no checkpoint; run again")

    def _agree(self, step: int, step_seconds: Sequence[float]) -> list[float]:
        """Return the worst of all ranks: signal, seconds left and needed, whether to save, steps to the next look."""
        recent = list(step_seconds[self._first_step :][-RECENT_STEPS:]) or [FIRST_STEP_SECONDS]
        wait = max(1, min(MOST_STEPS, int(LOOK_SECONDS / median(recent))))
        saving = self.checkpoint_seconds or self._estimated_seconds
        need = wait * median(recent) + max(recent) + self.evaluation_seconds + saving
        left = NEVER if self.limits.ends_at is None else self.limits.ends_at - self.now()
        every, due = self.limits.save_every_seconds, False
        if every is not None and self.checkpoints is not None and step != self._first_step:
            due = self.now() - self._saved_at > max(every, self.checkpoint_seconds / SAVING_SHARE)
        mine = [max(self.signals or [0]), -left, MARGIN * need + SPARE_SECONDS, due, -wait]
        rows = torch.tensor(mine, dtype=torch.float64, device=self.communicator.control_device)
        # Gathered, not reduced, so that every rank takes the greatest of exactly the same numbers.
        gathered = self.communicator.all_gather(rows, f"watch {step}").wait()
        worst = torch.stack(list(gathered)).amax(0).tolist()
        return [worst[0], -worst[1], worst[2], worst[3], -worst[4]]

    def _save(self, step: int, capture: Capture) -> bool:
        if self.checkpoints is None:
            return False
        started = time.perf_counter()
        shared, own = capture()
        wall_seconds = self.earlier_seconds + self.now() - self.limits.started_at
        watch = {"evaluation_seconds": self.evaluation_seconds, "earlier_seconds": wall_seconds}
        saved = self.checkpoints.save(step, shared, {**own, "watch": {**watch, "resumed_at": self.resumed_at}})
        self.checkpoint_seconds = time.perf_counter() - started
        self._saved_at = self.now()
        return saved

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time the block as one evaluation."""
        started = time.perf_counter()
        yield
        self.evaluation_seconds = max(self.evaluation_seconds, time.perf_counter() - started)

    def summary(self) -> dict[str, Any]:
        """Return its facts for the record."""
        return {"resumed_at_steps": self.resumed_at, "earlier_seconds": self.earlier_seconds}
