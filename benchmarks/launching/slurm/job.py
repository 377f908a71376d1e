"""Facts about the Slurm job that this process runs in. Raises ConfigError outside of a job."""

import math
import os
import re
import subprocess
from collections.abc import Sequence

from resireduce.errors import ConfigError

ANSWER_SECONDS = 60.0
DEFAULTS = ("SQUEUE_", "SCANCEL_", "SINFO_", "SACCT_", "SLURM_TIME_FORMAT")
TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
"""[days-][hours:]minutes:seconds, as squeue writes it."""


def job_id() -> str:
    """Return the job's number."""
    number = os.environ.get("SLURM_JOB_ID")
    if not number:
        raise ConfigError("launcher: 'srun' works within a Slurm job only; start it by: snakemake --profile slurm")
    return number


def seconds_left(said: str | None = None) -> float:
    """Return the time until the job's limit, infinite without one; `said` is squeue's answer; None: ask squeue.

    It asks squeue instead of reading a variable, since Snakemake removes most of Slurm's variables from its jobs.
    """
    text = (said if said is not None else ask(["squeue", "--noheader", "--jobs", job_id(), "--format", "%L"])).strip()
    if (found := TIME.fullmatch(text)) is None:
        return math.inf  # UNLIMITED, NOT_SET, INVALID
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def host_names(nodes: str) -> list[str]:
    """Return the names that a list such as node[1-2] stands for."""
    return ask(["scontrol", "show", "hostnames", nodes]).split()


def without_defaults() -> dict[str, str]:
    """Return the environment without the user's own defaults for Slurm's programs.

    They could hide jobs (SQUEUE_STATES) or nodes, or ask questions (SCANCEL_INTERACTIVE).
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(DEFAULTS)}


def ask(command: Sequence[str]) -> str:
    """Return the output of one of Slurm's programs. Raises ConfigError, one line, if it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
            env=without_defaults(),
        )
    except FileNotFoundError:
        raise ConfigError(f"{command[0]}: not on PATH; Slurm's commands are needed here") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{command[0]}: no answer in {ANSWER_SECONDS:g} s; is the controller up?") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ConfigError(f"{' '.join(command[:3])}: {said}")
    return done.stdout
