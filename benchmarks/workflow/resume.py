"""`python -m benchmarks resume`: resumes a stopped run with the options it was started with. Imports no torch."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from benchmarks.core.files import lock, try_json
from benchmarks.core.paths import RUNS
from benchmarks.launching.slurm.queue import QueuedJob, cancel, cell_comment, find_jobs, name_jobs, wait_until_gone
from resireduce.errors import ConfigError, choose

HERE = ("--cores", "all", "--keep-going", "--rerun-incomplete", "--quiet", "rules", "progress", "host", "--nolock")
"""Snakemake's options on one machine, as in `make run`; a list of values must not be last, as it takes all words."""
CLUSTER = ("--profile", "slurm")


def find_leftovers(folder: Path) -> list[QueuedJob]:
    """Return the jobs of a run that an earlier start has left in the queue.

    There are none if it was not started on a cluster. Raises ConfigError, one line, if squeue does not answer.
    """
    if "site" not in (try_json(folder / "config.json") or {}):
        return []
    comments = {cell_comment(folder.name, path.stem) for path in (folder / "specs").glob("*.json")}
    try:
        return find_jobs(comments, Path.cwd())
    except ConfigError as error:
        raise ConfigError(f"slurm: jobs of an earlier start may be left, and it cannot be told: {error}") from None


def check_leftovers(folder: Path) -> None:
    """Raise ConfigError, one line with the jobs and the cure, if Slurm still has jobs of the run."""
    if jobs := find_leftovers(folder):
        raise ConfigError(
            f"run: {folder.name} has {name_jobs(jobs)}, left by an earlier start; end them and go on: "
            f"make resume RUN={folder.name}"
        )


def end_leftovers(folder: Path) -> None:
    """Cancel the jobs of a run that are in the queue, say so, and wait until they are gone. Raises ConfigError."""
    if not (jobs := find_leftovers(folder)):
        return
    print(f"{folder}: cancelling {name_jobs(jobs)}; those that run save what they have ...", flush=True)
    cancel([job for job in jobs if job.state != "COMPLETING"])
    waited_seconds = wait_until_gone(lambda: find_leftovers(folder))
    print(f"{folder}: they have ended, after {waited_seconds:.0f} s", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", required=True, help="name of the run, in results/runs")
    text = "options for snakemake, after --: those that the run was started with beside config and --profile slurm"
    parser.add_argument("options", nargs="*", metavar="-- OPTIONS", help=text)


def main(args: argparse.Namespace) -> int:
    """End the run's jobs that are left in the queue, and become Snakemake."""
    folder = RUNS / choose("run", args.run, sorted(path.parent.name for path in RUNS.glob("*/config.json")))
    with lock(folder / ".lock", str(folder)):
        end_leftovers(folder)
    # Without !!str Snakemake reads 007 or 1e3 as numbers, and the run lies elsewhere. The config takes all words up to
    # the next option, so it must not be last.
    own = ["--configfile", str(folder / "config.json"), "--config", f"run=!!str {folder.name}"]
    on_cluster = "site" in (try_json(folder / "config.json") or {})
    line = [*own, *(CLUSTER if on_cluster else HERE), *args.options]
    print(f"{folder}: {shlex.join(['snakemake', *line])}", flush=True)
    # Snakemake replaces this process, so that Ctrl-C and the exit status are its own.
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *line])
