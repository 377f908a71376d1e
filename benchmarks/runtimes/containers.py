"""Starts the containers of one launch, one for each rank, and leaves none behind."""

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.runtimes.binds import bind_all
from benchmarks.runtimes.client import Client
from benchmarks.runtimes.isolation import isolated
from benchmarks.runtimes.ranks import Start
from benchmarks.runtimes.runtime import HOSTS, Container, Runtime

LOOK_SECONDS = 0.05
START_SECONDS = 60.0
"""How long the first container may take until others can join it; an idle machine needs half a second."""
REMOVE_SECONDS = 60.0


@contextmanager
def containers(
    runtime: Runtime, folder: Path, writable: Sequence[Path | None] = (), readable: Sequence[Path | None] = ()
) -> Iterator[Start]:
    """Within it commands of the image's python can be started, each in a container of its own; they share a network.

    Args:
        runtime: what runs the image.
        folder: of the launch, on the host and in the containers.
        writable: paths that they may write to, beside `folder`.
        readable: paths that they only read.

    Raises:
        ConfigError: for paths that cannot be bound; for a network that is not to be had.
    """
    binds, token = bind_all([folder, *writable], readable, os.environ), f"resireduce-{secrets.token_hex(6)}"
    started: list[Client] = []
    with ExitStack() as stack:
        alone = runtime.name == "apptainer" and runtime.network == "none"
        prefix = stack.enter_context(isolated()) if alone else []
        if alone:
            (folder / HOSTS).write_text(runtime.hosts(), encoding="utf-8")
        stack.callback(_clear_away, runtime, token, started)

        def start(arguments: Sequence[str], variables: Mapping[str, str]) -> Client:
            rank = len(started)
            leader = f"{token}-0" if rank else None
            container = Container(name=f"{token}-{rank}", leader=leader, folder=folder, binds=binds)
            everything = {**os.environ, **variables}
            line = [*prefix, *runtime.command(["python", *arguments], container, everything)]
            if rank == 1:
                _wait_for(runtime, started[0], f"{token}-0")
            started.append(Client(line, runtime.environment(everything), folder / f"container{rank}.log"))
            return started[-1]

        yield start


def _wait_for(runtime: Runtime, client: Client, name: str) -> None:
    """Until a container runs, so that others can join it; or has ended, or takes too long: then they say so."""
    if runtime.name == "apptainer":
        return
    command = [*runtime.program, "container", "inspect", "--format", "{{.State.Running}}", name]
    deadline = time.monotonic() + START_SECONDS
    while client.poll() is None and time.monotonic() < deadline:
        left = max(LOOK_SECONDS, deadline - time.monotonic())
        with suppress(subprocess.TimeoutExpired):  # an engine that hangs
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
            if done.stdout.strip() == "true":
                return
        time.sleep(LOOK_SECONDS)


def _clear_away(runtime: Runtime, token: str, started: Sequence[Client]) -> None:
    """End what is still there. A client that is killed leaves its container running until that notices."""
    for client in started:
        client.kill()
        client.wait()
        client.close()
    if runtime.name == "apptainer" or not started:
        return
    # They remove themselves when they end, so most are gone: of that docker complains, and podman does nothing at all.
    options = ["--force", "--ignore"] if runtime.name == "podman" else ["--force"]
    command = [*runtime.program, "rm", *options, *(f"{token}-{rank}" for rank in reversed(range(len(started))))]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=REMOVE_SECONDS, check=False)
