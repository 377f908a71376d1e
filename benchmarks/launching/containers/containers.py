"""Starts the containers of one launch, each by a client process of its own, and leaves none behind.

The programs are this machine's own, or those that the rig fetches.
"""

import os
import secrets
import shutil
import signal
import subprocess
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

    def complaint(self, rank: int = 0) -> str | None:
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


REMOVE_SECONDS = 60.0


@contextmanager
def containers(
    runtime: Runtime, folder: Path, writable: Sequence[Path | None] = (), readable: Sequence[Path | None] = ()
) -> Iterator[Start]:
    """Yield a function that starts commands of the image's python, each in its own container.

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
            container = Container(name=f"{token}-{rank}", folder=folder, binds=binds)
            everything = {**os.environ, **variables}
            line = runtime.command(["python", *arguments], container, everything)
            started.append(Client(line, runtime.environment(everything), folder / f"container{rank}.log"))
            return started[-1]

        yield start


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
