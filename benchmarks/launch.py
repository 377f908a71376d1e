"""Starts the ranks of a cell as processes of this machine, and finds out how they ended. Imports no torch."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.files import load_json, save_json

TIMEOUT_SECONDS = 3600.0
"""How long a cell's ranks may take, unless told: many times what the slowest needs, so that only a hang is ended."""
GRACE_SECONDS = 10.0
"""How long the other ranks may go on after one has failed: they have their own outcome to write."""
POLL_SECONDS = 0.1
PRECEDENCE = ("oom", "diverged", "timeout", "node-fail", "error", "ok")
"""If ranks end differently, the first of these is what happened; the others failed because of it."""
STOPPED = {"status": "error", "reason": "stopped because another rank had failed"}
"""Outcome of a rank that went on for longer than the grace; of two errors, it is the other that says what happened."""


def launch(
    cell: Cell, folder: Path, weights: Path | None, root: Path, timeout_seconds: float = TIMEOUT_SECONDS
) -> list[dict[str, Any]]:
    """Run all ranks to their end, for `timeout_seconds` at most.

    Returns each rank's outcome. One that left none has status error, or timeout if it was stopped for that.
    `folder` is for the files of this launch, and must be empty; `root` is that of prepared data sets.
    """
    spec = folder / "cell.json"
    save_json(cell.to_dict(), spec)
    ranks = [_start(cell, rank, spec, weights, root) for rank in range(cell.world_size)]
    try:
        in_time = _wait(ranks, folder, timeout_seconds)
        running = [process.poll() is None for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    outcomes = [_outcome(folder, rank, process) for rank, process in enumerate(ranks)]
    late = {"status": "timeout", "reason": f"not done after {timeout_seconds:g} s; its log says how far it came"}
    ended = STOPPED if in_time else late
    return [ended if was and it["status"] == "error" else it for was, it in zip(running, outcomes, strict=True)]


def _start(cell: Cell, rank: int, spec: Path, weights: Path | None, root: Path) -> subprocess.Popen[bytes]:
    folder = spec.parent
    command = [
        sys.executable,
        "-m",
        "benchmarks.train",
        "--cell",
        str(spec),
        "--output",
        str(folder / f"rank{rank}.json"),
    ]
    command += ["--rendezvous", str(folder / "rendezvous"), "--data", str(root)]
    command += ["--weights", str(weights)] if weights else []
    place = {"RANK": str(rank), "WORLD_SIZE": str(cell.world_size), "LOCAL_RANK": str(rank)}
    place |= {"LOCAL_WORLD_SIZE": str(cell.world_size)}
    threads = str(max(1, (os.cpu_count() or 1) // cell.world_size))
    # All ranks are on this machine: gloo need not find out which of its addresses its name stands for.
    local = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": threads}
    return subprocess.Popen(command, env={**os.environ, **place, **local}, preexec_fn=_die_with_parent)  # noqa: PLW1509  (this process has no threads)


def _die_with_parent() -> None:
    """Ask Linux to kill this rank when the process that started it dies, even of SIGKILL."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _wait(ranks: list[subprocess.Popen[bytes]], folder: Path, timeout_seconds: float) -> bool:
    """Until all have ended; once one has failed the others have GRACE_SECONDS. False if the time was over before."""
    deadline, failed = time.monotonic() + timeout_seconds, False
    while any(process.poll() is None for process in ranks):
        if not failed and any(_has_failed(folder, rank, process) for rank, process in enumerate(ranks)):
            failed, deadline = True, time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            return failed
        time.sleep(POLL_SECONDS)
    return True


def _has_failed(folder: Path, rank: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether the others wait for it in vain: a rank that diverged ends with exit status 0 too."""
    return process.poll() is not None and (process.returncode != 0 or _outcome(folder, rank, process)["status"] != "ok")


def _outcome(folder: Path, rank: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What an ended rank left."""
    path = folder / f"rank{rank}.json"
    if path.exists():
        return load_json(path)
    return {"status": "error", "reason": f"rank {rank} {how_ended(process.returncode)}; its log says more"}


def how_ended(code: int) -> str:
    """The end of a process that left no result, in words, from its return code."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    return f"{how} and left no result"


def overall(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """The outcome that explains the others."""
    return min(outcomes, key=lambda outcome: (PRECEDENCE.index(outcome["status"]), outcome == STOPPED))
