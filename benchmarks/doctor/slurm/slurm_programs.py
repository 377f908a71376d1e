"""Run Slurm's programs so that they cannot hang or raise, and parse the output of scontrol of Slurm 20 to 25."""

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.doctor.finding import one_line
from benchmarks.launching.slurm.job import without_defaults


@dataclass(frozen=True)
class Answer:
    """The answer of a program."""

    text: str = ""
    """Standard output of the program."""
    error: str | None = None
    """Why there is no output, in one line."""


Ask = Callable[[Sequence[str]], Answer]
"""How checks run programs: `asking`, or a stand-in."""


def asking(timeout_seconds: float) -> Ask:
    """Return a function that runs a program for at most `timeout_seconds` and never raises."""

    def ask(command: Sequence[str]) -> Answer:
        name = command[0]
        try:
            done = subprocess.run(
                command,
                env=without_defaults(),
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
"""NAME=value; a value may contain spaces, as that of OS does."""
SETTING = re.compile(r"^(\w+)\s+= ?(.*?)\s*$", re.MULTILINE)
GRES = re.compile(r"^gpu(?::(?P<type>[^:]+))??(?::no_consume)?(?::(?P<count>\d+))?$")


def records(text: str) -> list[dict[str, str]]:
    """Return the fields of each line of `scontrol --oneliner show ...`; the first one of a name counts."""
    return [dict(reversed(FIELD.findall(line))) for line in text.splitlines() if "=" in line]


def settings(text: str) -> dict[str, str]:
    """Return the output of `scontrol show config`, by name."""
    return dict(SETTING.findall(text))


def number(text: str | None) -> int | None:
    """Return the number that a text begins with, as in `300 sec`; None for UNLIMITED, N/A and the like."""
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


def gpus(gres: str) -> dict[str, int]:
    """Return the number of GPUs of each type on a node, from its Gres; the type is an empty text where none is given.

    `gpu:a100:4(S:0-1),nvme:1` has four of type a100; the brackets list their sockets or devices.
    """
    found: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        if match := GRES.fullmatch(part.strip()):
            found[match["type"] or ""] += int(match["count"] or 1)
    return {kind: count for kind, count in found.items() if count}
