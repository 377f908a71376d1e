"""Settings for stopping and resuming a cell: its deadline, how often to save, and where. Imports no torch."""

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.core.cell import Cell
from benchmarks.core.content import LIBRARY, TRAINING, content_hash, get_packages
from benchmarks.core.files import file_hash, load_json

MANIFEST = "checkpoint.json"
"""Written last: without it the other files do not count as a checkpoint."""
RECORD_SECONDS = 2.0
"""Time that the command itself needs at the end: its ranks must end this long before the cell's deadline."""
SAVE_EVERY_SECONDS = 600.0
"""Default interval of checkpoints: a kill costs ten minutes at most, a shorter cell writes none."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a cell's ranks stop by themselves, and where they save the state to resume from."""

    ends_at: float | None = None
    """Seconds since the epoch at which all ranks must have ended; None: whenever they are done."""
    save_every_seconds: float | None = None
    """Time between two checkpoints; None: save only before stopping."""
    folder: Path | None = None
    """Folder of this cell's checkpoint, on a disk that all ranks see; None: nothing is saved."""
    content: dict[str, Any] = field(default_factory=dict)
    """By name, what a checkpoint must have in common with this run to be resumed."""
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `to_dict` gave, from JSON."""
        values = load_json(path)
        return cls(**{**values, "folder": Path(values["folder"]) if values["folder"] else None})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self) | {"folder": str(self.folder) if self.folder else None}

    @property
    def seconds_left(self) -> float:
        """Seconds until the ranks must have ended; infinite without a deadline."""
        return float("inf") if self.ends_at is None else self.ends_at - time.time()


def run_folder(output: Path) -> Path:
    """Return the folder of a run, in whose folder `cells` a record may be."""
    return output.absolute().parent.parent if output.absolute().parent.name == "cells" else output.absolute().parent


def content_of(cell: Cell, weights: Path | None, image: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return everything beside the data that determines a cell's training; the keys are used in messages.

    The digest of an image stands for all packages in it, which are not those of this machine.
    """
    return {
        "cell": cell.to_dict(),
        "resireduce": content_hash(LIBRARY),
        "benchmarks": content_hash(TRAINING),
        "packages": f"image {image['digest']}" if image else get_packages(),
        "pretrained weights": file_hash(weights) if weights else None,
    }


def saved_step(folder: Path | None) -> int | None:
    """Return the step from which a cell's checkpoint resumes; None if there is no checkpoint."""
    try:
        return int(load_json(folder / MANIFEST)["step"]) if folder else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_checkpoint(folder: Path | None) -> None:
    """Delete a cell's checkpoint, and the folder of checkpoints if it was the last. What cannot be deleted stays."""
    if folder is not None and folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another cell has one there, or has just deleted the folder
            folder.parent.rmdir()
