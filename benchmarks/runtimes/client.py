"""A container, as the process of the client that runs it."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.runtimes.logged import Logged
from benchmarks.runtimes.ranks import die_with_parent

ENGINE_FAILED = (125, 126, 127, 255)
"""Exit statuses by which docker and podman, or apptainer (the last), say that they could not start the command."""
SAID = ("docker: ", "Error: ", "FATAL: ", "OCI runtime")
"""How the line begins that says why; advice may come after it."""


class Client(Logged):
    """Signals go through a pipe to `benchmarks.runtimes.supervise`, which no killed client and no late start can lose.

    Args:
        command: the whole command line.
        environment: all variables of the client.
        log: file for what it and the container say; it comes out on this process's error stream when it is polled.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        # In a session of its own, so that Ctrl-C on a terminal reaches the launcher only.
        super().__init__(
            command,
            log,
            env=environment,
            stdin=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # this process has no threads
        )

    def send_signal(self, sig: int) -> None:
        """Have the command in the container get a signal. SIGKILL ends this client, and with it the container."""
        if sig == signal.SIGKILL:
            super().send_signal(sig)
        elif self.stdin is not None:
            with suppress(BrokenPipeError):
                os.write(self.stdin.fileno(), bytes([sig]))

    def complaint(self) -> str | None:
        """What the engine said if it could not start the command."""
        if self.poll() not in ENGINE_FAILED:
            return None
        lines = self.said()
        told = [line for line in lines if line.startswith(SAID)] or lines or ["it said nothing"]
        return told[-1]

    def close(self) -> None:
        """As `Logged`'s, and its standard input."""
        super().close()
        if self.stdin is not None:
            self.stdin.close()
