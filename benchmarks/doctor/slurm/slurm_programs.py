"""Slurm's programs, asked so that none can hang or surprise, and what scontrol of Slurm 20 to 25 prints, as values."""

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.doctor.finding import one_line


@dataclass(frozen=True)
class Answer:
    """What a program said."""

    text: str = ""
    """Standard output of the program."""
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
            bare = (line.removeprefix(f"{name}: ").removeprefix("error: ") for line in said)
            return Answer(done.stdout, one_line(f"{name}: {' '.join(bare)}"))
        return Answer(done.stdout)

    return ask


FIELD = re.compile(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)")
"""NAME=value; a value may hold spaces, as that of OS does."""
SETTING = re.compile(r"^(\w+)\s+= ?(.*?)\s*$", re.MULTILINE)
GRES = re.compile(r"^gpu(?::(?P<type>[^:]+))??(?::no_consume)?(?::(?P<count>\d+))?$")


def records(text: str) -> list[dict[str, str]]:
    """Return the fields of each line of `scontrol --oneliner show ...`; the first of a name counts."""
    return [dict(reversed(FIELD.findall(line))) for line in text.splitlines() if "=" in line]


def settings(text: str) -> dict[str, str]:
    """Return what `scontrol show config` prints, by name."""
    return dict(SETTING.findall(text))


def number(text: str | None) -> int | None:
    """Return the number that a text begins with, as in `300 sec`; None for UNLIMITED, N/A and the like."""
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


def gpus(gres: str) -> dict[str, int]:
    """Return how many GPUs of each type a node has, from its Gres; the type of those without one is an empty text.

    `gpu:a100:4(S:0-1),nvme:1` has four of type a100; what is in brackets says which sockets or devices they are at.
    """
    found: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        if match := GRES.fullmatch(part.strip()):
            found[match["type"] or ""] += int(match["count"] or 1)
    return {kind: count for kind, count in found.items() if count}
