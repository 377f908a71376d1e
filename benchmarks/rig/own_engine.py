"""A Docker Engine of our own: dockerd with its store in the user's cache, which ends with what started it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.core.files import alone
from benchmarks.core.paths import cache_folder
from benchmarks.images.engine import answers
from benchmarks.launching.containers.runtime import command
from resireduce.errors import ConfigError

START_SECONDS = 60.0
STOP_SECONDS = 20.0


@contextmanager
def own_engine() -> Iterator[str]:
    """Have this user's own engine run within the block, and yield its address; another process may have started it."""
    folder = cache_folder() / "engine"
    address = f"unix://{folder / 'docker.sock'}"
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / ".starting"):
        process = None if answers(address) else _start(folder, address)
    try:
        yield address
    finally:
        if process is not None:
            _stop(process)


def _start(folder: Path, address: str) -> subprocess.Popen[bytes]:
    """Start it and wait until it answers. Raises ConfigError, with what it said last, if it ends or takes long."""
    deadline = time.monotonic() + STOP_SECONDS
    while _is_alive(folder / "docker.pid"):  # one that is ending, or does not answer
        if time.monotonic() > deadline:
            raise ConfigError(f"engine: the process in {folder / 'docker.pid'} does not answer; wait for it, or end it")
        time.sleep(0.1)
    for name in ("docker.sock", "docker.pid", "exec/containerd/containerd.pid"):  # of one that was killed
        (folder / name).unlink(missing_ok=True)
    arguments = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "docker.pid"]
    # It does not change the machine's network: containers use the host's, or none.
    arguments += ["--host", address, "--bridge=none", "--iptables=false", "--ip6tables=false"]
    # setpriv has Linux stop it when this process dies, even of SIGKILL.
    line = ["setpriv", "--pdeathsig", "TERM", "--", *command("dockerd"), *map(str, arguments)]
    print("Starting a Docker Engine, as none runs ...", file=sys.stderr, flush=True)
    log, deadline = folder / "log", time.monotonic() + START_SECONDS
    with log.open("w") as output:
        # In a session of its own, as Ctrl-C is meant for the process that uses it.
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        while not answers(address):
            if process.poll() is not None or time.monotonic() > deadline:
                said = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"])[-1]
                raise ConfigError(f"engine: dockerd did not start; {log} ends with: {said}")
            time.sleep(0.1)
    except BaseException:  # also for Ctrl-C
        _stop(process)
        raise
    return process


def _is_alive(pid_file: Path) -> bool:
    """Return whether the engine that wrote this file still runs; its number may be another process' by now."""
    try:
        return str(pid_file).encode() in Path(f"/proc/{int(pid_file.read_text())}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
