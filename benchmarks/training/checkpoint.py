"""Checkpoints that resume a cell bit for bit: a file of shared state, one for each rank, and a JSON written last."""

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import nn

from benchmarks.core.files import load_json, save_json
from benchmarks.core.stop_policy import MANIFEST
from benchmarks.training.measure.phases import StepClock
from resireduce.comm.base import Communicator
from resireduce.core.optimizer import DistributedOptimizer

State = dict[str, Any]


def capture(
    model: nn.Module, optimizer: DistributedOptimizer, clock: StepClock, history: list[list[float | None]]
) -> tuple[State, State]:
    """Return the state that all ranks share and this rank's own state. Tensors are not copied."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    values = model.state_dict()
    shared = {
        "parameters": {name: value for name, value in values.items() if name in names},
        "optimizer": optimizer.state_dict(),
    }
    own = {
        # Batch norm's running statistics differ between ranks.
        "buffers": {name: value for name, value in values.items() if name not in names},
        "residuals": optimizer.residual_state_dict(),
        "random": _random_states(_device(model)),
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
        torch.cuda.set_rng_state(own["random"]["cuda"], _device(model))
    for name, value in own["clock"].items():
        setattr(clock, name, value)


def _random_states(device: torch.device) -> State:
    """Return the states of the generators that dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


_BUILT_IN = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError)
UNREADABLE = (*_BUILT_IN, pickle.UnpicklingError, BadZipFile)
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

        Args:
            step: number of steps taken.
            shared: the state that is the same on all ranks; rank 0 writes it.
            own: this rank's state.

        Returns:
            Whether it was written. If not, a rank says in one line why, and the previous checkpoint is kept.
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
            reason = self._why_other(manifest)
            if not reason:
                step = int(manifest["step"])
                found = (step, self._read(step, "shared"), self._read(step, f"rank{self.communicator.rank}"))
            status = REFUSED if reason else READ
        except (FileNotFoundError, NotADirectoryError) as error:
            if Path(error.filename).name != MANIFEST:
                status, reason = REFUSED, f"lacks {Path(error.filename).name}"
        except UNREADABLE as error:
            status, reason = REFUSED, f"cannot be read ({_one_line(error)})"
        statuses = self._gather(status, "checkpoint load")
        if REFUSED in statuses and statuses.index(REFUSED) == self.communicator.rank:
            self._say(f"the checkpoint in {self.folder} {reason}; the cell starts afresh")
        return found if set(statuses) == {READ} else None

    def _why_other(self, manifest: Any) -> str:
        found = {**manifest["content"], "world_size": manifest["world_size"]}
        wanted = {**self.content, "world_size": self.communicator.world_size}
        differ = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
        return f"is of other content ({', '.join(differ)})" if differ else ""

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
