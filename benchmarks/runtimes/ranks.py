"""The processes of a cell's ranks, on this machine or as clients of containers. Imports no torch."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.cell import Cell
from benchmarks.runtimes.malloc import with_malloc

if TYPE_CHECKING:
    from benchmarks.runtimes.runtime import Runtime

LIMITS = "limits.json"
POLL_SECONDS = 0.1


class Rank(Protocol):
    """One rank, as who has started it sees it: a process here, or one of many that another program has started."""

    @property
    def returncode(self) -> int | None:
        """As Popen's."""

    def poll(self) -> int | None:
        """As Popen's."""

    def wait(self) -> int:
        """As Popen's."""

    def send_signal(self, sig: int) -> None:
        """As Popen's."""

    def terminate(self) -> None:
        """As Popen's."""

    def kill(self) -> None:
        """As Popen's."""

    def complaint(self) -> str | None:
        """Why it was not even started, in one line, as far as it is known."""

    def verdict(self) -> dict[str, Any] | None:
        """Status and reason of a rank that left nothing, where who has started it knows better than its exit status."""


class RankProcess(subprocess.Popen[bytes]):
    """One rank, or what stands for it on this machine."""

    def complaint(self) -> str | None:
        """Why it was not even started, in one line, as far as it is known."""
        return None

    def verdict(self) -> dict[str, Any] | None:
        """As `Rank`'s: its exit status says all that is known."""
        return None


Start = Callable[[Sequence[str], Mapping[str, str]], RankProcess]
"""Starts a command, without its interpreter, with variables beside those of this process."""


@contextmanager
def starting(
    runtime: "Runtime | None", folder: Path, writable: Sequence[Path | None], readable: Sequence[Path | None]
) -> Iterator[Start]:
    """Within it ranks can be started, on this machine or in an image; at its end no container of theirs is left.

    Whoever launches them, all are started by this, and have malloc's settings unless others are given.

    Args:
        runtime: None for this machine.
        folder: of the launch.
        writable: what ranks write to, beside `folder`.
        readable: what they only read.
    """
    if runtime is None:
        yield _settled(start_here)
        return
    from benchmarks.runtimes.containers import containers

    with containers(runtime, folder, writable, readable) as start:
        yield _settled(start)


def _settled(start: Start) -> Start:
    return lambda arguments, variables: start(arguments, with_malloc(variables, os.environ))


def start_here(arguments: Sequence[str], variables: Mapping[str, str]) -> RankProcess:
    """Start a rank as a process of this machine."""
    environment = {**os.environ, **variables}
    # This process has no threads, for which preexec_fn would be unsafe.
    return RankProcess([sys.executable, *arguments], env=environment, preexec_fn=die_with_parent)


def run_python(arguments: Sequence[str], runtime: "Runtime | None", writable: Sequence[Path] = ()) -> None:
    """Run a command of python to its end, on this machine or in an image. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory(prefix="resireduce-command-") as folder:
        with starting(runtime, Path(folder), writable, []) as start, start(arguments, {}) as process:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(arguments), stderr=process.complaint())


def rank_arguments(cell: Cell, rank: int, folder: Path, weights: Path | None, root: Path) -> list[str]:
    """Return what a rank's interpreter is called with; its files are in the launch's folder."""
    arguments = ["-m", "benchmarks.training.rank", "--cell", str(folder / "cell.json")]
    arguments += ["--output", str(folder / f"rank{rank}.json"), "--rendezvous", str(folder)]
    arguments += ["--data", str(root.absolute()), "--limits", str(folder / LIMITS)]
    return arguments + (["--weights", str(weights.absolute())] if weights else [])


def rank_variables(cell: Cell, rank: int) -> dict[str, str]:
    """Return the variables that tell a rank which it is."""
    size = str(cell.world_size)
    place = {"RANK": str(rank), "WORLD_SIZE": size, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": size}
    # All ranks are on this machine: gloo need not find out which of its addresses its name stands for.
    return place | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(cell.threads)}


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies, even of SIGKILL; between fork and exec."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
