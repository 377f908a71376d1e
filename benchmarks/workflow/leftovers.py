"""What a run left when its Snakemake ended before its jobs did: found in the queue, and in the run's folder."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.cell import Cell
from benchmarks.cluster.queue import QueuedJob, cancel, cell_comment, find_jobs, name_jobs, wait_until_gone
from benchmarks.files import load_json
from benchmarks.record import CellResult, RecordError
from benchmarks.workflow.lock import is_locked
from resireduce.errors import ConfigError

DAMAGED = ".damaged"


def find_leftovers(folder: Path, cells: Iterable[str]) -> list[QueuedJob]:
    """Return the jobs of a run that are in the queue: of `cells`, and of those that it had when it was started before.

    Jobs that train weights belong to it too, unless another run is at work here, whose they may be. To be called with
    the run's lock. Raises ConfigError, one line, where squeue does not answer.
    """
    names = {*cells, *(path.stem for path in (folder / "specs").glob("*.json"))}
    try:
        found = find_jobs({cell_comment(folder.name, name) for name in names}, Path.cwd())
    except ConfigError as error:
        raise ConfigError(f"slurm: jobs of an earlier start may be left, and it cannot be told: {error}") from None
    if any(job.trains_weights for job in found) and _others_at_work(folder):
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
    """Put records aside that cannot be read or are of another cell, and say so: their cells run again."""
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


def _others_at_work(folder: Path) -> bool:
    return any(is_locked(other) for other in folder.absolute().parent.iterdir() if other.name != folder.name)
