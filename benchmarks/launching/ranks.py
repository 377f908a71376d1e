"""Starts the ranks of a cell, on this machine or in containers. Imports no torch."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.launching.containers.runtime import Runtime
from benchmarks.launching.processes import LIMITS, POLL_SECONDS, Start, start_here, with_malloc


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
    if runtime is None:
        yield _settled(start_here)
        return
    from benchmarks.launching.containers.containers import containers

    with containers(runtime, folder, writable, readable) as start:
        yield _settled(start)


def _settled(start: Start) -> Start:
    return lambda arguments, variables: start(arguments, with_malloc(variables, os.environ))


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


def rank_variables(cell: Cell, rank: int) -> dict[str, str]:
    """Return the variables that tell a rank which one it is."""
    size = str(cell.world_size)
    place = {"RANK": str(rank), "WORLD_SIZE": size, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": size}
    # All ranks are on this machine: gloo need not look up the address of its name.
    return place | {"GLOO_SOCKET_IFNAME": "lo"} | cell_variables(cell)


def cell_variables(cell: Cell) -> dict[str, str]:
    """Return the variables that a rank gets from its cell, whichever launcher starts it and wherever it runs."""
    return {"OMP_NUM_THREADS": str(cell.threads)}
