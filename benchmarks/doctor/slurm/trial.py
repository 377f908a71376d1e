"""The job that tries out a partition: its requests, and the commands that submit it."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import Finding, not_run
from benchmarks.doctor.slurm.inventory import Partition

JOB_NAME = "resireduce-doctor"
MINUTES = 10
RANKS = 2
"""Least number of tasks on each node."""
MOST_RANKS = 128
"""Most tasks in all; a cell cannot have more."""
RANK_MB = 2000
"""Memory of a rank in MB: torch's, with a reserve."""
TRIAL, LOG = "trial.json", "job.log"


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


def command(trial: Trial, folder: Path, account: str | None) -> Sequence[str]:
    """Return the sbatch command for a trial; all nodes see `folder`, which holds its script and its log."""
    options = [f"--job-name={JOB_NAME}", f"--partition={trial.partition}", f"--time={trial.minutes}", "--no-requeue"]
    options += [f"--nodes={trial.nodes}", f"--ntasks-per-node={trial.tasks_per_node}", "--cpus-per-task=1"]
    options += [f"--mem={trial.memory_mb}", f"--output={folder / LOG}", f"--chdir={ROOT}", "--export=ALL"]
    options += [f"--gres={trial.gres}:{trial.gpus}"] if trial.gpus else []
    options += [f"--account={account}"] if account else []
    return ["sbatch", "--parsable", *options, str(folder / "job.sh")]


def script(folder: Path) -> str:
    """Return the job's script."""
    line = [sys.executable, "-m", "benchmarks.doctor.slurm.inside", str(folder)]
    return f"#!/bin/sh\nexec {shlex.join(line)}\n"
