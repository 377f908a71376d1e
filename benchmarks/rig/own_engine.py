"""A Docker Engine of our own: dockerd with its store in the user's cache, for as long as a process uses it.

Each process that uses it holds a shared lock, which the kernel drops however the process ends; the last process stops
the engine.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.core.files import alone
from benchmarks.core.paths import cache_folder
from benchmarks.images.engine import answers
from benchmarks.launching.containers.containers import command
from resireduce.errors import ConfigError

START_SECONDS = 60.0
STOP_SECONDS = 20.0


class OwnEngine:
    """The files of our own engine."""

    def __init__(self, folder: Path):
        containerd = folder / "exec/containerd"
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.pid_file = folder / "docker.pid"
        """Holds its process ID while it runs."""
        self.processes = {self.pid_file: self.pid_file, containerd / "containerd.pid": containerd / "containerd.toml"}
        """Files with the process IDs of dockerd and its containerd, and an argument that identifies each."""
        self.log = folder / "log"
        """File with what dockerd and containerd have printed since the engine was last started."""


@contextmanager
def own_engine() -> Iterator[str]:
    """Keep this user's own engine running within the block, and yield its address."""
    own = OwnEngine(cache_folder() / "engine")
    with held(own):
        yield f"unix://{own.socket}"


@contextmanager
def held(own: OwnEngine) -> Iterator[None]:
    """Keep our own engine running within the block."""
    own.folder.mkdir(parents=True, exist_ok=True)
    with (own.folder / ".users").open("a") as users:
        with alone(own.folder / ".starting"):
            if not answers(f"unix://{own.socket}"):
                _start(own)
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with alone(own.folder / ".starting"), suppress(BlockingIOError):  # if others use it
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _stop(own)


def _start(own: OwnEngine) -> None:
    own.socket.unlink(missing_ok=True)
    for file, argument in own.processes.items():  # dockerd would take any process with this ID for itself
        if _process(file, argument) is None:
            file.unlink(missing_ok=True)
    arguments = ["--data-root", own.folder / "data", "--exec-root", own.folder / "exec", "--pidfile", own.pid_file]
    # It does not change the machine's network: containers use the host's, or none.
    arguments += ["--host", f"unix://{own.socket}", "--bridge=none", "--iptables=false", "--ip6tables=false"]
    line = [*command("dockerd"), *map(str, arguments)]
    print("Starting a Docker Engine, as none runs ...", file=sys.stderr, flush=True)
    with own.log.open("w") as log:
        # In a session of its own: Ctrl-C is meant for the processes that use it.
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(own, process)
    except BaseException:  # also for Ctrl-C: nothing else would stop it
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its child processes
        process.wait()
        raise


def _wait_for(own: OwnEngine, process: subprocess.Popen[bytes]) -> None:
    """Wait until the engine answers. Raises ConfigError, with what it said last, if its process ends or takes long."""
    deadline = time.monotonic() + START_SECONDS
    while not answers(f"unix://{own.socket}"):
        if process.poll() is not None or time.monotonic() > deadline:
            said = (own.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"])[-1]
            raise ConfigError(f"engine: dockerd did not start; {own.log} ends with: {said}")
        time.sleep(0.1)


def _stop(own: OwnEngine) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    if (number := _process(own.pid_file, own.pid_file)) is not None:
        os.kill(number, signal.SIGTERM)
    while _process(own.pid_file, own.pid_file) is not None and time.monotonic() < deadline:
        time.sleep(0.1)


def _process(file: Path, argument: Path) -> int | None:
    """Return the process ID in a file, if that process has the given argument.

    A killed process leaves the file behind; its ID may now belong to another process, or to a remnant of it.
    """
    try:
        number = int(file.read_text(encoding="utf-8"))
        line = Path(f"/proc/{number}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return number if os.fsencode(argument) in line.split(b"\0") else None
