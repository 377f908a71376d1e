"""The jobs that try out partitions: what each asks for, its submission, and the wait for all of them."""

import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import Finding, not_run
from benchmarks.doctor.slurm.slurm_cluster import Ask, Partition

JOB_NAME = "resireduce-doctor"
MINUTES = 10
RANKS = 2
"""Least number of tasks on each node."""
MOST_RANKS = 128
"""Most tasks in all; a cell cannot have more."""
RANK_MB = 2000
"""Memory of a rank in MB: torch's, with a reserve."""
TRIAL, LOG, LOCK = "trial.json", "job.log", "lock"


@dataclass(frozen=True)
class Trial:
    """One job, as plain values that the job reads."""

    partition: str
    nodes: int
    tasks_per_node: int
    gpus: int
    """GPUs requested on each node, which is all of them; 0 if it has none."""
    gres: str
    """Name of the GPUs: gpu, or gpu:TYPE if there are several types."""
    memory_mb: int
    minutes: int
    runtime: str = "none"
    """The container runtime of the site's cells."""
    image: str | None = None
    interface: str | None = None
    """The network device named by the site."""
    account: str | None = None
    """The account named by the site."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks of a cell: one for each GPU."""
        return min(self.gpus, self.tasks_per_node) or self.tasks_per_node


def plan(partition: Partition) -> Trial | Finding:
    """Return the job for a partition, or the reason for having none."""
    if partition.state != "UP":
        return not_run("job", f"partition {partition.name}: its state is {partition.state}")
    shape = partition.shape()
    if shape is None:
        return not_run("job", f"partition {partition.name}: none of its {len(partition.nodes)} nodes can be used")
    tasks = max(RANKS, shape.gpus) if shape.cpus >= max(RANKS, shape.gpus) else max(1, min(shape.cpus, shape.gpus or 1))
    nodes = max(1, min(2, shape.nodes, partition.max_nodes or 2, MOST_RANKS // tasks))
    several = len(partition.gpu_types) > 1
    return Trial(
        partition=partition.name,
        nodes=nodes,
        tasks_per_node=tasks,
        gpus=shape.gpus,
        gres=f"gpu:{shape.gpu_type}" if several and shape.gpu_type else "gpu",
        memory_mb=min(tasks * RANK_MB, shape.memory_mb),
        minutes=int(min(MINUTES, partition.max_minutes)) or 1,
    )


def command(trial: Trial, folder: Path) -> Sequence[str]:
    """Return the sbatch command for a trial; all nodes see `folder`, which holds its script and its log."""
    options = [f"--job-name={JOB_NAME}", f"--partition={trial.partition}", f"--time={trial.minutes}", "--no-requeue"]
    options += [f"--nodes={trial.nodes}", f"--ntasks-per-node={trial.tasks_per_node}", "--cpus-per-task=1"]
    options += [f"--mem={trial.memory_mb}", f"--output={folder / LOG}", f"--chdir={ROOT}", "--export=ALL"]
    options += [f"--gres={trial.gres}:{trial.gpus}"] if trial.gpus else []
    options += [f"--account={trial.account}"] if trial.account else []
    return ["sbatch", "--parsable", *options, str(folder / "job.sh")]


def script(folder: Path) -> str:
    """Return the job's script."""
    line = [sys.executable, "-m", "benchmarks.doctor.slurm.inside", str(folder)]
    return f"#!/bin/sh\nexec {shlex.join(line)}\n"


# --- submitting, waiting, cancelling ---


LOOK_SECONDS = 2.0
SQUEUE_FORMAT = "%i|%T|%r|%N"
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
)
NEVER = (
    *("AccountNotAllowed", "AccountingPolicy", "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionDown"),
    *("PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed"),
)
"""Reasons of pending jobs that do not go away by themselves."""
GONE = "GONE"
"""The state of a job that squeue no longer knows because it has ended."""


@dataclass
class Submitted:
    """A submitted job, with its last report from squeue."""

    number: str
    partition: str
    state: str = "PENDING"
    reason: str = "None"
    nodes: str = ""
    banner: str = ""
    """What sbatch printed beside the number, on its standard output."""

    @property
    def has_ended(self) -> bool:
        """Whether it has finished."""
        return self.state in (*ENDED, GONE)

    @property
    def is_stuck(self) -> bool:
        """Whether it would wait forever."""
        return self.state == "PENDING" and self.reason in NEVER

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason not in ("None", "") and self.state != "COMPLETED" else ""
        where = f" on {self.nodes}" if self.nodes else ""
        return f"job {self.number} in {self.partition}: {self.state.lower()}{why}{where}"


def submit(trial: Trial, folder: Path, ask: Ask) -> Submitted | str:
    """Submit a job; return the message of sbatch if it refuses it.

    The output of --parsable has the job's number in the last line that is a number, perhaps with a semicolon and the
    cluster's name. Sites print other lines, too.
    """
    answer = ask(command(trial, folder))
    if answer.error is not None:
        return answer.error
    lines = answer.text.strip().splitlines()
    number = next((line for line in reversed(lines) if re.fullmatch(r"\d+(;\S+)?", line.strip())), None)
    if number is None:
        return f"sbatch --parsable printed no job number: {answer.text.strip()!r}"
    banner = "\n".join(line for line in lines if line is not number)
    return Submitted(number.strip().split(";")[0], trial.partition, banner=banner)


def wait(jobs: Sequence[Submitted], ask: Ask, seconds: float, say: Callable[[str], None]) -> None:
    """Wait for at most `seconds` until all jobs have ended or can never start; report each change of a job."""
    deadline, said = time.monotonic() + seconds, dict[str, str]()
    while True:
        _update(jobs, ask)
        for job in jobs:
            if said.get(job.number) != str(job):
                said[job.number] = str(job)
                say(str(job))
        if all(job.has_ended or job.is_stuck for job in jobs) or time.monotonic() > deadline:
            return
        time.sleep(LOOK_SECONDS)


def cancel(jobs: Sequence[Submitted], ask: Ask) -> None:
    """Cancel the jobs that have not ended."""
    running = [job.number for job in jobs if not job.has_ended]
    if running:
        ask(["scancel", *running])


def _update(jobs: Sequence[Submitted], ask: Ask) -> None:
    waiting = {job.number: job for job in jobs if not job.has_ended}
    if not waiting:
        return
    answer = ask(["squeue", "--noheader", "--states=all", f"--jobs={','.join(waiting)}", f"--format={SQUEUE_FORMAT}"])
    if answer.error and "invalid job id" not in answer.error.lower():
        return  # the controller does not answer
    lines = {line.split("|")[0]: line.split("|") for line in answer.text.splitlines() if line.count("|") == 3}
    for number, job in waiting.items():
        if number in lines:
            _, job.state, job.reason, job.nodes = lines[number]
        else:
            job.state, job.reason = GONE, ""
