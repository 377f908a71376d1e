"""Starts the ranks of a cell, on this machine or in containers, and runs them until they end. Imports no torch."""

import math
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json
from benchmarks.core.outcome import Outcome
from benchmarks.core.stop_policy import Limits
from benchmarks.launching.containers.runtime import Runtime, containers
from benchmarks.launching.outcomes import STOPPED, left_by, out_of_time, outcome_of, outcomes_of
from benchmarks.launching.processes import (
    LIMITS,
    RankProcess,
    Start,
    count_oom_kills,
    passing_on,
    place_variables,
    start_here,
    wait_for,
    with_malloc,
)
from benchmarks.launching.slurm.step import Job


@contextmanager
def starting(
    runtime: Runtime | None, folder: Path, writable: Sequence[Path | None], readable: Sequence[Path | None]
) -> Iterator[Start]:
    """Yield a function that starts ranks, on this machine or in an image; at the end none of their containers is left.

    Every launcher starts its ranks by this, with malloc's settings unless others are given. Ranks write to `folder`, of
    the launch, and to the `writable` paths, and only read the `readable` ones.
    """
    with ExitStack() as stack:
        start: Start = start_here
        if runtime is not None:
            start = stack.enter_context(containers(runtime, folder, writable, readable))
        yield lambda arguments, variables: start(arguments, with_malloc(variables, os.environ))


def run_python(arguments: Sequence[str], runtime: Runtime | None, writable: Sequence[Path]) -> None:
    """Run a command of python to its end, on this machine or in an image. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory(prefix="resireduce-command-") as folder:
        with starting(runtime, Path(folder), writable, []) as start, start(arguments, {}) as process:
            wait_for([process], math.inf, lambda: False, 0)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(arguments), stderr=process.complaint())


def rank_arguments(cell: Cell, rank: int, folder: Path, weights: Path | None, root: Path) -> list[str]:
    """Return the arguments of a rank's interpreter; its files are in the launch's folder."""
    arguments = ["-m", "benchmarks.training.rank", "--cell", str(folder / "cell.json")]
    arguments += ["--output", str(folder / f"rank{rank}.json"), "--rendezvous", str(folder)]
    arguments += ["--data", str(root.absolute()), "--limits", str(folder / LIMITS)]
    return arguments + (["--weights", str(weights.absolute())] if weights else [])


def cell_variables(cell: Cell) -> dict[str, str]:
    """Return the variables that a rank gets from its cell, whichever launcher starts it and wherever it runs."""
    return {"OMP_NUM_THREADS": str(cell.threads)}


TIMEOUT_SECONDS = 3600.0
"""Default time limit of a cell's ranks: many times what the slowest needs, so that only a hang is ended."""
GRACE_SECONDS = 30.0
"""How long the other ranks may go on after one has failed, to write their own outcomes, on a disk that may be busy."""


def launch(
    cell: Cell,
    folder: Path,
    weights: Path | None,
    root: Path,
    timeout_seconds: float = TIMEOUT_SECONDS,
    limits: Limits | None = None,
    runtime: Runtime | None = None,
    job: Job | None = None,
) -> list[Outcome]:
    """Run all ranks until they end, for `timeout_seconds` and until the deadline of `limits` at most.

    Returns each rank's outcome. A rank that left none gets status error, timeout if it ran out of time, or oom if the
    kernel killed it. `folder` is for the files of this launch, and must be empty; `root` is that of prepared data sets.
    With `runtime` each rank is in a container of its own; with `job` they are on the nodes of that Slurm job.
    SIGTERM and SIGINT are passed on to the ranks, which save and stop; a second SIGINT kills them.
    """
    limits = limits or Limits()
    save_json(cell.to_dict(), folder / "cell.json")
    save_json(limits.to_dict(), folder / LIMITS)
    kills, processes = _oom_kills(runtime), list[RankProcess]()

    def started(stack: ExitStack) -> Iterator[RankProcess]:
        """Start the ranks and yield their processes one by one; none is left when `stack` is closed."""
        if job is not None:
            yield stack.enter_context(job.start(folder, weights, root, limits.folder, runtime))
            return
        read = [weights, *(root / name for name in cell.needs)]
        start = stack.enter_context(starting(runtime, folder, [limits.folder], read))
        for rank in range(cell.world_size):
            variables = place_variables(rank, cell.world_size) | cell_variables(cell)
            yield start(rank_arguments(cell, rank, folder, weights, root), variables)

    with passing_on(processes) as signals, ExitStack() as stack:
        try:
            for process in started(stack):
                processes.append(process)
                for number in signals:  # those that came while it was being started
                    process.send_signal(number)
            ranks = processes if job is None else processes * cell.world_size
            seconds = min(timeout_seconds, limits.seconds_left)
            in_time = wait_for(processes, seconds, lambda: _is_last(ranks, folder), GRACE_SECONDS)
            running = [process.exit_status(rank) is None for rank, process in enumerate(ranks)]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    killed_by_kernel = kills is not None and (_oom_kills(runtime) or 0) > kills
    ended = STOPPED if in_time else out_of_time(timeout_seconds, limits)
    return outcomes_of(folder, ranks, running, killed_by_kernel, ended, signals)


def _is_last(ranks: list[RankProcess], folder: Path) -> bool:
    """Say whether one has failed, or each has left its outcome: shutting down a process group may hang."""
    left = True
    for rank, process in enumerate(ranks):
        code = process.exit_status(rank)
        # A rank that diverged ends with exit status 0 too.
        if code or (code == 0 and outcome_of(folder, rank, process).status != "ok"):
            return True
        left = left and (code == 0 or left_by(folder, rank).exists())
    return left


def _oom_kills(runtime: Runtime | None) -> int | None:
    """Return the number of OOM kills: of the whole machine for containers, which have control groups of their own."""
    return count_oom_kills() if runtime is None else count_oom_kills(cgroups=None)
