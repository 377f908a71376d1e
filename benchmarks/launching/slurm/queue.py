"""Asks Slurm: of this job, of a run's jobs that it still has, and of failed nodes, which later jobs avoid."""

import math
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.files import load_json, save_json, try_json
from benchmarks.core.programs import output_of
from benchmarks.launching.slurm.working import WORKING
from resireduce.errors import ConfigError

ANSWER_SECONDS = 60.0
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


def ask(command: Sequence[str], timeout_seconds: float = ANSWER_SECONDS) -> str:
    """Return the output of one of Slurm's programs. Raises ConfigError, one line, if it fails."""
    own = ("SQUEUE_", "SCANCEL_", "SINFO_", "SLURM_TIME_FORMAT")  # a user's defaults would hide jobs, or ask
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return output_of(command, timeout_seconds, stdin=subprocess.DEVNULL, env=environment)


GONE_SECONDS = 300.0
"""How long cancelled jobs may take to end: Slurm gives them KillWait, usually 30 s, then cleans up."""
LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class QueuedJob:
    """A job that is pending, running, or completing."""

    number: str
    state: str
    """PENDING, RUNNING, COMPLETING ..."""


def cell_comment(run: str, cell: str) -> str:
    """Return the comment of a cell's jobs: the rule and its wildcards, in the order of the output's name."""
    return f"rule_cell_wildcards_{run}_{cell}"


def find_jobs(comments: Collection[str], folder: Path) -> list[QueuedJob]:
    """Return this user's jobs, submitted from `folder`, with one of `comments`, in hidden partitions too."""
    line = ["squeue", "--noheader", "--all", f"--user={os.getuid()}", "--sort=i", "--format=%i|%T|%k|%Z"]
    jobs = (
        said.split("|", 3) for said in ask(line).splitlines() if said.count("|") >= 3
    )  # a folder's name may have it
    return [
        QueuedJob(number, state)
        for number, state, comment, place in jobs
        if comment in comments and os.path.realpath(place) == os.path.realpath(folder)
    ]


def cancel(jobs: Sequence[QueuedJob]) -> None:
    """Ask Slurm to end jobs, which get SIGTERM and may save their state; one may have ended meanwhile."""
    with suppress(ConfigError):
        ask(["scancel", *(job.number for job in jobs)])


def wait_until_gone(find: Callable[[], Sequence[QueuedJob]]) -> float:
    """Wait until `find` finds no jobs, and return the seconds that this took: a job that is completing is not gone.

    Raises ConfigError, one line with the jobs, if some are there for longer than GONE_SECONDS.
    """
    start = time.monotonic()
    while jobs := find():
        if time.monotonic() - start > GONE_SECONDS:
            raise ConfigError(
                f"slurm: {name_jobs(jobs)} not gone {GONE_SECONDS:g} s after scancel; what holds it says: "
                f"scontrol show job {jobs[0].number}; then make resume again"
            )
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - start


def name_jobs(jobs: Sequence[QueuedJob]) -> str:
    """Return how many jobs there are, and their numbers."""
    return f"{len(jobs)} jobs: {', '.join(job.number for job in jobs)}"


LOST = "lost-nodes.json"
FAILED = ("down", "fail", "*")
"""Words in the state of a node that Slurm counts as failed; the last: it does not answer."""


def lost_nodes(run: Path, cell: str, needed: int) -> list[str]:
    """Return the nodes that jobs of a run are to avoid, and note those that failed under an earlier try of this cell.

    A job whose node fails is killed, so its working files are left. Returns nothing if that would leave the cell fewer
    than `needed` nodes.
    """
    known = set(try_json(run / LOST) or ())
    used = {load_json(file)["host"] for file in (run / WORKING / cell).glob("rank*.place.json")}
    if not known | used:
        return []
    with suppress(ConfigError):
        lines = ask(["sinfo", "--noheader", "--Node", "--format", "%N %T"]).splitlines()
        failed = {node for node, state in map(str.split, lines) if any(word in state for word in FAILED)}
        avoided = known | used & failed
        if avoided != known:
            save_json(sorted(avoided), run / LOST)
        if len({line.split()[0] for line in lines} - failed - avoided) >= needed:
            return sorted(avoided)
    return []
