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

GRACE_SECONDS = 10.0
"""How long the other ranks may go on after one has failed: they have their own outcome to write."""
POLL_SECONDS = 0.1
PRECEDENCE = ("oom", "diverged", "timeout", "node-fail", "error", "ok")
"""If ranks end differently, the first of these is what happened; the others failed because of it."""


def launch(cell: Cell, folder: Path, weights: Path | None) -> list[dict[str, Any]]:
    """Run all ranks to their end. Returns each rank's outcome; a rank that left none has status error.

    `folder` is for the files of this launch, and must be empty.
    """
    spec = folder / "cell.json"
    save_json(cell.to_dict(), spec)
    ranks = [_start(cell, rank, spec, weights) for rank in range(cell.world_size)]
    try:
        _wait(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [_outcome(folder / f"rank{rank}.json", rank, process) for rank, process in enumerate(ranks)]


def _start(cell: Cell, rank: int, spec: Path, weights: Path | None) -> subprocess.Popen[bytes]:
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
    command += ["--rendezvous", str(folder / "rendezvous")] + (["--weights", str(weights)] if weights else [])
    place = {"RANK": str(rank), "WORLD_SIZE": str(cell.world_size), "LOCAL_RANK": str(rank)}
    threads = str(max(1, (os.cpu_count() or 1) // cell.world_size))
    # All ranks are on this machine: gloo need not find out which of its addresses its name stands for.
    local = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": threads}
    return subprocess.Popen(command, env={**os.environ, **place, **local}, preexec_fn=_die_with_parent)  # noqa: PLW1509  (this process has no threads)


def _die_with_parent() -> None:
    """Ask Linux to kill this rank when the process that started it dies, even of SIGKILL."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Until all have ended; once one has failed the others have GRACE_SECONDS."""
    deadline = None
    while any(process.poll() is None for process in ranks):
        if deadline is None and any(process.poll() for process in ranks):
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(POLL_SECONDS)


def _outcome(path: Path, rank: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    if path.exists():
        return load_json(path)
    code = process.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    return {"status": "error", "reason": f"rank {rank} {how} and left no result; its log says more"}


def overall(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """The outcome that explains the others."""
    return min(outcomes, key=lambda outcome: PRECEDENCE.index(outcome["status"]))
