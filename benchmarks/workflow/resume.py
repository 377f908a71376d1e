"""`python -m benchmarks resume`: resumes a stopped run with the options it was started with. Imports no torch."""

import argparse
import fcntl
import os
import shlex
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, save_json, try_json
from benchmarks.core.paths import RUNS
from benchmarks.core.record import CellResult, RecordError
from benchmarks.core.run_config import get_cells
from benchmarks.launching.slurm.queue import QueuedJob, cancel, cell_comment, find_jobs, name_jobs, wait_until_gone
from resireduce.errors import ConfigError

# --- What is left in queue and folder if Snakemake ends before its jobs ---


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", required=True, help="name of the run, or its folder in results/runs")
    text = "options for snakemake, after --: those that the run was started with beside profile and config"
    parser.add_argument("options", nargs="*", metavar="-- OPTIONS", help=text)


def main(args: argparse.Namespace) -> int:
    """End the run's jobs that are left in the queue, put damaged records aside, and become Snakemake."""
    folder = find_run(args.run)
    config = read_config(folder)
    cells = get_cells(config)
    profile = started_with(folder)
    try:
        with lock_folder(folder):
            if profile is not None:
                end_leftovers(folder, cells)
            move_damaged(folder, cells)
    except FolderInUse as error:
        raise ConfigError(f"run: {error}") from None
    # Without !!str Snakemake reads 007 or 1e3 as numbers, and the run lies elsewhere. The config takes all words up to
    # the next option, so it must not be last.
    own = ["--configfile", str(folder / "config.json"), "--config", f"run=!!str {folder.name}"]
    line = [*own, *(HERE if profile is None else profile), *args.options]
    print(f"{folder}: {shlex.join(['snakemake', *line])}", flush=True)
    # Snakemake replaces this process, so that Ctrl-C and the exit status are its own.
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *line])


def find_run(given: str) -> Path:
    """Return the folder of a run, relative to the project's. Raises ConfigError if there is none of that name."""
    if not Path("Snakefile").is_file():
        raise ConfigError(f"folder: {str(Path.cwd())!r} has no Snakefile; run this in the project's folder")
    name = Path(given).name
    if given.rstrip("/") != name and Path(given).absolute().parent.resolve() != RUNS.resolve():
        raise ConfigError(f"run: {given!r} is not in {RUNS}; give the name of a run, or its folder there")
    folder = RUNS / name
    if not name or not (folder / "config.json").is_file():
        there = ", ".join(sorted(path.parent.name for path in RUNS.glob("*/config.json"))) or "none"
        raise ConfigError(f"run: {given!r} was never started; there are: {there}")
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """Return what the run was started with. Raises ConfigError, one line, if that cannot be read."""
    path = folder / "config.json"
    try:
        config = load_json(path)
        if not isinstance(config, dict):
            raise ValueError("no mapping")
    except (OSError, ValueError) as error:
        raise ConfigError(f"run: {path} cannot be read ({error}); start the run anew with its config file") from None
    return config


FILE = "start.json"
HERE = ("--cores", "all", "--keep-going", "--rerun-incomplete", "--quiet", "rules", "progress", "host", "--nolock")
"""Snakemake's options on one machine, as in `make run`; a list of values must not be last, as it takes all words."""
CLUSTER = ("--profile", "slurm")


def profile_options(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the options of a snakemake command line that name the profile of a cluster."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--profile", default=environment.get("SNAKEMAKE_PROFILE"))
    parser.add_argument("--workflow-profile")
    given, _ = parser.parse_known_args(list(arguments))
    named = {"--profile": given.profile, "--workflow-profile": given.workflow_profile}
    return [word for option, value in named.items() if value for word in (option, value)] or list(CLUSTER)


def remember_start(folder: Path, options: Sequence[str] | None) -> None:
    """Write how the run is started: with `options` on a cluster; None: on this machine."""
    save_json({"profile": list(options) if options else None}, folder / FILE)


def started_with(folder: Path) -> list[str] | None:
    """Return the options by which the run was last started on a cluster; None if it was on one machine.

    If the file is missing or unreadable, the run's config decides: it has a site only on a cluster.
    """
    for name, key in ((FILE, "profile"), ("config.json", "site")):
        values = try_json(folder / name)
        if isinstance(values, dict) and key in values:
            found = values[key]
            return (found if isinstance(found, list) else list(CLUSTER)) if found else None
    return None
