"""What a run leaves in queue and folder if its Snakemake ends before its jobs; and the lock of that folder."""

import fcntl
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.record import CellResult, RecordError
from benchmarks.launching.slurm.queue import QueuedJob, cancel, cell_comment, find_jobs, name_jobs, wait_until_gone
from resireduce.errors import ConfigError

DAMAGED = ".damaged"


def find_leftovers(folder: Path, cells: Iterable[str]) -> list[QueuedJob]:
    """Return the jobs of a run that are in the queue: those of `cells`, and of its cells from earlier starts.

    Jobs that train weights are included, unless another run is active here and they may be its own. Call it with the
    run's lock. Raises ConfigError, one line, if squeue does not answer.
    """
    names = {*cells, *(path.stem for path in (folder / "specs").glob("*.json"))}
    try:
        found = find_jobs({cell_comment(folder.name, name) for name in names}, Path.cwd())
    except ConfigError as error:
        raise ConfigError(f"slurm: jobs of an earlier start may be left, and it cannot be told: {error}") from None
    others = (other for other in folder.absolute().parent.iterdir() if other.name != folder.name)
    if any(job.trains_weights for job in found) and any(map(is_locked, others)):
        return [job for job in found if not job.trains_weights]
    return found


def check_leftovers(folder: Path, cells: Iterable[str]) -> None:
    """Raise ConfigError, one line with the jobs and the cure, if Slurm still has jobs of the run."""
    if jobs := find_leftovers(folder, cells):
        raise ConfigError(
            f"run: {folder.name} has {name_jobs(jobs)}, left by an earlier start; end them and go on: "
            f"make resume RUN={folder.name}"
        )


def end_leftovers(folder: Path, cells: Iterable[str]) -> None:
    """Cancel the jobs of a run that are in the queue, say so, and wait until they are gone. Raises ConfigError."""
    cells = list(cells)
    if not (jobs := find_leftovers(folder, cells)):
        return
    print(f"{folder}: cancelling {name_jobs(jobs)}; those that run save what they have ...", flush=True)
    cancel([job for job in jobs if job.state != "COMPLETING"])
    waited_seconds = wait_until_gone(lambda: find_leftovers(folder, cells))
    print(f"{folder}: they have ended, after {waited_seconds:.0f} s", flush=True)


def move_damaged(folder: Path, cells: Mapping[str, Cell]) -> None:
    """Put aside records that cannot be read or belong to another cell, and say so; their cells will run again."""
    for name, cell in cells.items():
        record, failed = (folder / f"cells/{name}{suffix}.json" for suffix in ("", ".failed"))
        try:
            if record.exists() and (found := CellResult.load(record).cell) != cell:
                _put_aside(record, f"it is of another cell, {found.name}")
        except RecordError as error:
            _put_aside(record, str(error).removeprefix(f"{record}: ").removesuffix("; delete it and run again"))
        try:
            if failed.exists():
                load_json(failed)
        except ValueError as error:
            _put_aside(failed, f"half written or not JSON ({error})")


def _put_aside(path: Path, why: str) -> None:
    number, target = 1, path.with_name(path.name + DAMAGED)
    while target.exists():
        number, target = number + 1, path.with_name(f"{path.name}{DAMAGED}{number + 1}")
    os.replace(path, target)
    print(f"{path}: {' '.join(why.split())}; it is now {target.name}, and the cell runs again", flush=True)


class FolderInUse(RuntimeError):
    """Another process is working on the folder, or it cannot be locked; the message says which."""


def lock_folder(folder: str | Path) -> TextIO:
    """Lock folder until the returned file is closed or the process ends. Raises FolderInUse, one line."""
    path = Path(folder) / ".lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise FolderInUse(f"{path} cannot be written: {error.strerror}; choose another run name") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise FolderInUse(f"{folder} is in use by process {owner}; wait for it, or choose another run name") from None
    file.truncate(0)
    file.write(f"{os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def is_locked(folder: str | Path) -> bool:
    """Say whether a process holds the lock of a folder. If none does, this takes and drops a shared lock."""
    try:
        with (Path(folder) / ".lock").open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a disk without locks
        return False
    return False
