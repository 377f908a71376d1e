"""Starts the containers of one launch, each by a client process of its own, and leaves none behind.

The programs are this machine's own, or those that the rig fetches.
"""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.launching.containers.runtime import Container, Runtime, bind_all
from benchmarks.launching.processes import Logged, Start, die_with_parent
from resireduce.errors import ConfigError
from resireduce.scheme import load

ENGINE_FAILED = (125, 126, 127, 255)
"""Exit statuses with which docker, or apptainer (the last), reports that it could not start the command."""
SAID = ("docker: ", "Error: ", "FATAL: ", "OCI runtime")
"""Beginnings of the line that says why; advice may come after it."""


class Client(Logged):
    """The client process of one container.

    Signals go through a pipe to `benchmarks.launching.supervise`; neither a killed client nor a late start loses them.

    Args:
        command: the whole command line.
        environment: all variables of the client.
        log: file for its output and the container's, which is copied to this process's error stream when it is polled.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        # It has a session of its own, so that Ctrl-C on a terminal reaches the launcher only.
        super().__init__(
            command,
            log,
            env=environment,
            stdin=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # this process has no threads
        )

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command in the container. SIGKILL ends this client, and with it the container."""
        if sig == signal.SIGKILL:
            super().send_signal(sig)
        elif self.stdin is not None:
            with suppress(BrokenPipeError):
                os.write(self.stdin.fileno(), bytes([sig]))

    def complaint(self) -> str | None:
        """Return the engine's message if it could not start the command."""
        if self.poll() not in ENGINE_FAILED:
            return None
        lines = self.said()
        told = [line for line in lines if line.startswith(SAID)] or lines or ["it said nothing"]
        return told[-1]

    def close(self) -> None:
        """Close as `Logged` does, and close the standard input."""
        super().close()
        if self.stdin is not None:
            self.stdin.close()


LOOK_SECONDS = 0.05
START_SECONDS = 60.0
"""How long the first container may take until others can join it; an idle machine needs half a second."""
REMOVE_SECONDS = 60.0


@contextmanager
def containers(
    runtime: Runtime, folder: Path, writable: Sequence[Path | None] = (), readable: Sequence[Path | None] = ()
) -> Iterator[Start]:
    """Yield a function that starts commands of the image's python, each in its own container; all share a network.

    Args:
        runtime: what runs the image.
        folder: of the launch, on the host and in the containers.
        writable: paths that they may write to, beside `folder`.
        readable: paths that they only read.
    """
    binds, token = bind_all([folder, *writable], readable, os.environ), f"resireduce-{secrets.token_hex(6)}"
    started: list[Client] = []
    with ExitStack() as stack:
        stack.callback(_clear_away, runtime, token, started)

        def start(arguments: Sequence[str], variables: Mapping[str, str]) -> Client:
            rank = len(started)
            leader = f"{token}-0" if rank else None
            container = Container(name=f"{token}-{rank}", leader=leader, folder=folder, binds=binds)
            everything = {**os.environ, **variables}
            line = runtime.command(["python", *arguments], container, everything)
            if rank == 1:
                _wait_for(runtime, started[0], f"{token}-0")
            started.append(Client(line, runtime.environment(everything), folder / f"container{rank}.log"))
            return started[-1]

        yield start


def _wait_for(runtime: Runtime, client: Client, name: str) -> None:
    """Wait until a container runs, so that others can join it, or has ended, or takes too long: joining then fails."""
    if runtime.name == "apptainer":
        return
    command = [*runtime.program, "container", "inspect", "--format", "{{.State.Running}}", name]
    deadline = time.monotonic() + START_SECONDS
    while client.poll() is None and time.monotonic() < deadline:
        left = max(LOOK_SECONDS, deadline - time.monotonic())
        with suppress(subprocess.TimeoutExpired):  # the engine hangs
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
            if done.stdout.strip() == "true":
                return
        time.sleep(LOOK_SECONDS)


def _clear_away(runtime: Runtime, token: str, started: Sequence[Client]) -> None:
    """End all containers. The container of a killed client runs on until it notices."""
    for client in started:
        client.kill()
        client.wait()
        client.close()
    if runtime.name == "apptainer" or not started:
        return
    # Containers remove themselves when they end; docker complains of missing ones.
    command = [*runtime.program, "rm", "--force", *(f"{token}-{rank}" for rank in reversed(range(len(started))))]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=REMOVE_SECONDS, check=False)


def command(name: str, wrapped: bool = True) -> list[str]:
    """Return how to call a program, as the beginning of a command line. Raises ConfigError, one line with the cure.

    A program that the rig knows is fetched once if the machine lacks it, in about 10 s. Not `wrapped`, apptainer can
    build images as root, but not run them if root lacks capabilities.
    """
    wrapper = list[str]()
    if wrapped and name == "apptainer" and os.geteuid() == 0 and not _is_full_root():
        # A root without all capabilities, as in many containers, runs apptainer as a user.
        wrapper = [*command("unshare"), "--user", "--map-root-user"]
    if (found := shutil.which(name)) is not None:
        return [*wrapper, found]
    if (fetched := load("benchmarks.rig.debian:fetched_command")(name)) is not None:
        return [*wrapper, *fetched]
    raise ConfigError(f"{name}: not on PATH; install it, or choose another engine or runtime")


def _is_full_root() -> bool:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="utf-8"))
    return int(fields["CapEff"], 16) == 2 ** (last + 1) - 1
