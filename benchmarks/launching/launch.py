"""Starts the ranks of a cell, on this machine or in containers, and runs them until they end. Imports no torch."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json
from benchmarks.core.outcome import Outcome
from benchmarks.core.stop_policy import Limits
from benchmarks.launching.containers.runtime import Runtime
from benchmarks.launching.outcomes import STOPPED, Rank, left_by, out_of_time, outcome_of, outcomes_of
from benchmarks.launching.processes import (
    LIMITS,
    POLL_SECONDS,
    Start,
    count_oom_kills,
    place_variables,
    start_here,
    with_malloc,
)
from benchmarks.launching.slurm.step import Job


@contextmanager
def starting(
    runtime: Runtime | None, folder: Path, writable: Sequence[Path | None], readable: Sequence[Path | None]
) -> Iterator[Start]:
    """Yield a function that starts ranks, on this machine or in an image; at the end none of their containers is left.

    Every launcher starts its ranks by this, with malloc's settings unless others are given.

    Args:
        runtime: None for this machine.
        folder: of the launch.
        writable: paths that ranks write to, beside `folder`.
        readable: paths that they only read.
    """
    with ExitStack() as stack:
        start: Start = start_here
        if runtime is not None:
            from benchmarks.launching.containers.containers import containers

            start = stack.enter_context(containers(runtime, folder, writable, readable))
        yield lambda arguments, variables: start(arguments, with_malloc(variables, os.environ))


def run_python(arguments: Sequence[str], runtime: Runtime | None, writable: Sequence[Path]) -> None:
    """Run a command of python to its end, on this machine or in an image. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory(prefix="resireduce-command-") as folder:
        with starting(runtime, Path(folder), writable, []) as start, start(arguments, {}) as process:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
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
    kills, ranks = _oom_kills(runtime), list[Rank]()
    with _passing_on(ranks) as signals, ExitStack() as stack:
        try:
            for process in _start_all(stack, cell, folder, weights, root, limits, runtime, job):
                ranks.append(process)
                for number in signals:  # those that came while it was being started
                    process.send_signal(number)
            in_time = _wait(ranks, folder, min(timeout_seconds, limits.seconds_left))
            running = [process.poll() is None for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    killed_by_kernel = kills is not None and (_oom_kills(runtime) or 0) > kills
    ended = STOPPED if in_time else out_of_time(timeout_seconds, limits)
    return outcomes_of(folder, ranks, running, killed_by_kernel, ended, signals)


@contextmanager
def _passing_on(ranks: list[Rank]) -> Iterator[list[int]]:
    """Pass signals that ask this process to end on to the ranks; yield the list of those that came."""
    came: list[int] = []

    def pass_on(number: int, _: object) -> None:
        impatient = number == signal.SIGINT and number in came
        came.append(number)
        for process in ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if impatient else number)

    earlier = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _start_all(
    stack: ExitStack,
    cell: Cell,
    folder: Path,
    weights: Path | None,
    root: Path,
    limits: Limits,
    runtime: Runtime | None,
    job: Job | None,
) -> Iterator[Rank]:
    """Start the ranks and yield them one by one; none is left when `stack` is closed."""
    if job is not None:
        yield from stack.enter_context(job.start(folder, weights, root, limits.folder, runtime))
        return
    read = [weights, *(root / name for name in cell.needs)]
    start = stack.enter_context(starting(runtime, folder, [limits.folder], read))
    for rank in range(cell.world_size):
        variables = place_variables(rank, cell.world_size) | cell_variables(cell)
        yield start(rank_arguments(cell, rank, folder, weights, root), variables)


def _wait(ranks: list[Rank], folder: Path, timeout_seconds: float) -> bool:
    """Wait until all ranks have ended, for `timeout_seconds` at most; return False if that time was over before.

    Once one has failed, or each has left its outcome, the others have GRACE_SECONDS of that time: shutting down a
    process group may hang when no work is left.
    """
    deadline, last = time.monotonic() + timeout_seconds, False
    while any(process.poll() is None for process in ranks):
        numbered = list(enumerate(ranks))
        if not last and (
            any(  # a rank that diverged ends with exit status 0 too
                process.poll() is not None
                and (process.returncode != 0 or outcome_of(folder, rank, process).status != "ok")
                for rank, process in numbered
            )
            or all(process.poll() is not None or left_by(folder, rank).exists() for rank, process in numbered)
        ):
            last, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            return last
        time.sleep(POLL_SECONDS)
    return True


def _oom_kills(runtime: Runtime | None) -> int | None:
    """Return the number of OOM kills: of the whole machine for containers, which have control groups of their own."""
    return count_oom_kills() if runtime is None else count_oom_kills(cgroups=None)
