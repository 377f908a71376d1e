"""Other programs: what they print, or in one line why they do not."""

import subprocess
from collections.abc import Sequence
from typing import Any

from resireduce.errors import ConfigError


def output_of(line: Sequence[str], timeout_seconds: float | None = None, name: str = "", **options: Any) -> str:
    """Return what a program prints. Raises ConfigError, one line, if it is missing, late or fails: its last words.

    name: how the error calls it (default: the command's first word). options: of subprocess.run.
    """
    name, pipes = name or line[0], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given = pipes | {"text": True, "errors": "replace", "timeout": timeout_seconds} | options
    try:
        done = subprocess.run(line, check=False, **given)
    except FileNotFoundError:
        raise ConfigError(f"{name}: not on PATH; install it, or call it where it is") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{name}: no answer in {timeout_seconds:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ConfigError(f"{name}: {said[-1].strip()}")
    return done.stdout or ""
