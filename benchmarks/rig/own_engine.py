"""A Docker Engine of our own: dockerd with its store in the user's cache, for as long as somebody uses it.

Each process that uses it holds a shared lock, which the kernel drops however the process ends; the last one that leaves
stops it.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TextIO

import docker

from benchmarks.core.files import alone
from benchmarks.core.paths import cache_folder
from benchmarks.images.engine import ENGINE_ERRORS, answers
from benchmarks.launching.containers.programs import command
from resireduce.errors import ConfigError

START_SECONDS = 60.0
STOP_SECONDS = 20.0
LONGEST_SOCKET = 107
"""Bytes of a socket's path that Linux allows."""


class OwnEngine:
    """Where our own engine keeps what is its own."""

    def __init__(self, folder: Path):
        containerd = folder / "exec/containerd"
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.longest_socket = containerd / "containerd.sock.ttrpc"
        """Longest name of a socket that the programs it starts listen at."""
        self.pid_file = folder / "docker.pid"
        """Holds its process ID while it runs."""
        self.processes = {self.pid_file: self.pid_file, containerd / "containerd.pid": containerd / "containerd.toml"}
        """Files with the numbers of dockerd and of its containerd, and an argument that only they are called with."""
        self.log = folder / "log"
        """What it said since it was started last."""


@contextmanager
def own_engine() -> Iterator[str]:
    """The address of this user's own engine, which runs within it."""
    own = OwnEngine(cache_folder() / "engine")
    with held(own):
        yield f"unix://{own.socket}"


@contextmanager
def held(own: OwnEngine) -> Iterator[None]:
    """Our own engine runs within it."""
    own.folder.mkdir(parents=True, exist_ok=True)
    with (own.folder / ".users").open("a") as users:
        with alone(own.folder / ".starting"):
            if not answers(f"unix://{own.socket}"):
                _start(own)
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with alone(own.folder / ".starting"):
                if _is_last(users):
                    _stop(own)


def _is_last(users: TextIO) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(own: OwnEngine) -> None:
    if len(str(own.longest_socket)) > LONGEST_SOCKET:
        raise ConfigError(f"engine: {own.folder} is too long for its sockets; set XDG_CACHE_HOME to a shorter folder")
    own.socket.unlink(missing_ok=True)
    was_killed = own.pid_file.exists()
    for file, argument in own.processes.items():  # dockerd takes whoever has such a number now for itself
        if _process(file, argument) is None:
            file.unlink(missing_ok=True)
    arguments = ["--data-root", own.folder / "data", "--exec-root", own.folder / "exec", "--pidfile", own.pid_file]
    # It changes nothing of the machine's network: containers have the host's, or none.
    arguments += ["--host", f"unix://{own.socket}", "--bridge=none", "--iptables=false", "--ip6tables=false"]
    line = [*command("dockerd"), *map(str, arguments)]
    print("Starting a Docker Engine, as none runs ...", file=sys.stderr, flush=True)
    with own.log.open("w") as log:
        # In a session of its own: Ctrl-C is for those who use it.
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + START_SECONDS
    try:
        while not answers(f"unix://{own.socket}"):
            if process.poll() is not None or time.monotonic() > deadline:
                said = (own.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"])[-1]
                raise ConfigError(f"engine: dockerd did not start; {own.log} ends with: {said}")
            time.sleep(0.1)
    except BaseException:  # Ctrl-C, too: nobody else would stop it
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
        process.wait()
        raise
    if was_killed:  # in the middle of a build, perhaps
        client = docker.DockerClient(base_url=f"unix://{own.socket}", timeout=START_SECONDS)
        with closing(client), suppress(*ENGINE_ERRORS):
            client.containers.prune()


def _stop(own: OwnEngine) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    if (number := _process(own.pid_file, own.pid_file)) is not None:
        os.kill(number, signal.SIGTERM)
    while _process(own.pid_file, own.pid_file) is not None and time.monotonic() < deadline:
        time.sleep(0.1)


def _process(file: Path, argument: Path) -> int | None:
    """The process whose number is in a file, if it has that argument.

    One that was killed leaves the file behind; its number may be another's now, or that of what is left of it.
    """
    try:
        number = int(file.read_text(encoding="utf-8"))
        line = Path(f"/proc/{number}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return number if os.fsencode(argument) in line.split(b"\0") else None
