"""Slurm's programs, asked so that none can hang or surprise: each answer is a text, or a line that says why not."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.doctor.finding import one_line


@dataclass(frozen=True)
class Answer:
    """What a program said."""

    text: str = ""
    """Its standard output."""
    error: str | None = None
    """Why there is none: one line."""


Ask = Callable[[Sequence[str]], Answer]
"""How checks ask: `asking`, or what stands in for it."""


def asking(timeout_seconds: float) -> Ask:
    """Return a function that runs a program to its end, for so long at most, and never raises."""

    def ask(command: Sequence[str]) -> Answer:
        name = command[0]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer(error=f"{name}: no answer in {timeout_seconds:g} s")
        except OSError as error:
            return Answer(error=f"{name}: {'not on PATH' if isinstance(error, FileNotFoundError) else error.strerror}")
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return Answer(done.stdout, one_line(f"{name}: {' '.join(_bare(line, name) for line in said)}"))
        return Answer(done.stdout)

    return ask


def _bare(line: str, name: str) -> str:
    return line.removeprefix(f"{name}: ").removeprefix("error: ")
