"""A cell in a Slurm job: what it asks for, where its ranks are placed, and how `srun` starts a task for each."""

import math
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import finite, load_json, save_json
from benchmarks.core.outcome import Outcome
from benchmarks.launching.containers.runtime import Runtime
from benchmarks.launching.processes import Logged, die_with_parent
from benchmarks.launching.slurm.queue import ask, job_id, seconds_left
from benchmarks.launching.slurm.site import Site
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """Equally many ranks on each node."""

    nodes: int
    ranks_per_node: int


def place(cell: Cell, site: Site) -> Placement:
    """Return the placement of a cell's ranks: on as many nodes as the cell says, else on as few as can hold them.

    Raises ConfigError if a node cannot hold its ranks, or the ranks cannot be divided evenly.
    """
    most = site.gpus_per_node or site.ranks_per_node
    if cell.nodes is not None:
        on_each = cell.world_size // cell.nodes
        if on_each > most:
            what = f"gpus_per_node: {most}" if site.gpus_per_node else f"ranks_per_node: {most}"
            raise ConfigError(f"nodes: {cell.nodes} would put {on_each} ranks on each, and the site has {what}")
        return Placement(cell.nodes, on_each)
    on_each = max(count for count in range(1, most + 1) if cell.world_size % count == 0)
    return Placement(cell.world_size // on_each, on_each)


def job_resources(cell: Cell, site: Site, attempt: int = 1) -> dict[str, Any]:
    """Return the resources that the cell's job requests in its `attempt`, by the names of Snakemake's resources.

    GPUs are requested per node: a total may be split unevenly over nodes. `mpi` is set and empty, so that the job's
    command is not wrapped in a srun of one task, which would limit every srun within it.
    """
    placement = place(cell, site)
    found: dict[str, Any] = {
        "mpi": "",
        "nodes": placement.nodes,
        "cpus_per_task": site.cpus_per_rank,
        "mem_mb": min(placement.ranks_per_node * site.memory_mb_per_rank * attempt, site.most_memory_mb or 10**9),
        "runtime": min(site.minutes * attempt, site.longest_minutes),
        "slurm_extra": f"--ntasks-per-node={placement.ranks_per_node} {account_option(site)}".strip(),
    }
    if site.gpus_per_node:
        return found | {"gres": f"{site.gres}:{placement.ranks_per_node}"}
    return found | {"tasks": placement.nodes * placement.ranks_per_node}


def account_option(site: Site | None) -> str:
    """Return the option of sbatch that names the account; nothing if the site names none.

    Snakemake's resource slurm_account is not used: each job would look it up in the accounting database, which may be
    down. The executor accepts this form, without a blank, and it comes after the account that the executor guesses.
    """
    return f"-A{shlex.quote(site.account)}" if site is not None and site.account else ""


TASK = "task.json"
"""File that tells every task its `Task`."""
CANCEL_SECONDS = 10.0
END_SECONDS = 20.0
"""How long srun may take to collect tasks that were killed."""
NODE_LOST = ("Node failure", "NODE FAIL", "Communication connection failure", "Unable to contact")
MEMORY_FULL = ("oom_kill", "oom-kill", "Out Of Memory", "exceeded memory limit", "memory limit")
"""Words of srun and slurmstepd when a node is lost (NODE_LOST), and when a memory limit is reached."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a task must know to become a rank, beside what Slurm tells it. Plain values."""

    weights: str | None
    root: str
    """Folder of prepared data sets."""
    checkpoints: str | None
    """Folder of the cell's checkpoint."""
    ranks_per_node: int
    interface: str | None = None
    runtime: str = "none"
    image: str | None = None


def command(
    folder: Path, placement: Placement, cpus_per_rank: int, module: str = "benchmarks.launching.slurm.step_task"
) -> list[str]:
    """Return the command line of a srun whose tasks each run a module with the folder as its argument.

    Ranks find each other through a folder, so no MPI is requested. A rank that fails does not end the others: they
    still write their own outcomes.
    """
    options = [f"--nodes={placement.nodes}", f"--ntasks-per-node={placement.ranks_per_node}", "--distribution=block"]
    options += [f"--ntasks={placement.nodes * placement.ranks_per_node}", f"--cpus-per-task={cpus_per_rank}"]
    options += ["--mpi=none", "--kill-on-bad-exit=0", "--input=none", "--unbuffered", "--export=ALL"]
    return ["srun", *options, sys.executable, "-m", module, str(folder.absolute())]


def exit_file(folder: Path, rank: int) -> Path:
    """Return the file for the exit status of a task's rank, since srun itself ends only when all have ended."""
    return folder / f"rank{rank}.exit.json"


def place_file(folder: Path, rank: int) -> Path:
    """Return the file in which a task says where it runs, as soon as it starts."""
    return folder / f"rank{rank}.place.json"


class Step(Logged):
    """The srun of a cell, which stands for all its ranks; each is known by the files of its task."""

    def exit_status(self, rank: int) -> int | None:
        """Return a rank's exit status if it has ended; the step's if its task left none."""
        ended = self.poll()
        with suppress(OSError, ValueError, KeyError):
            return int(load_json(exit_file(self.log.parent, rank))["returncode"])
        return None if ended is None else ended or 1

    def send_signal(self, sig: int) -> None:
        """Send a signal to all tasks, by scancel, since srun takes some signals as meant for itself."""
        if self.poll() is not None:
            return
        try:
            number = load_json(next(self.log.parent.glob("rank*.place.json")))["step"]
            name = signal.Signals(sig).name.removeprefix("SIG")
            ask(["scancel", f"--signal={name}", f"{job_id()}.{number}"], CANCEL_SECONDS)
        except (OSError, ValueError, KeyError, StopIteration):  # no task yet, or no controller
            super().send_signal(sig)

    def kill(self) -> None:
        """End all tasks, and srun, which collects them, if it does not end by itself."""
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.wait(END_SECONDS)
            super().send_signal(signal.SIGKILL)

    def complaint(self, rank: int = 0) -> str | None:
        """Return why the task of a rank was not started, if it was not."""
        if self.poll() is None or place_file(self.log.parent, rank).exists():
            return None
        errors = [line for line in self.said() if "error:" in line]
        return (errors or self.said() or ["srun said nothing"])[-1]

    def verdict(self) -> Outcome | None:
        """Return the outcome of a step that ended badly, from srun's output."""
        return judge(self.said())


def judge(lines: Sequence[str]) -> Outcome | None:
    """Return how a rank ended, from the output of srun and slurmstepd; None if they name no known cause."""
    for status, words in (("node-fail", NODE_LOST), ("oom", MEMORY_FULL)):
        for line in lines:
            if any(word.lower() in line.lower() for word in words):
                return Outcome(status=status, reason=f"Slurm says: {line}")
    return None


MARGIN_SECONDS = 15.0
"""A cell must end this long before its job's limit: records are still written, and Snakemake ends twice."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The Slurm job that this process runs in, and how the ranks of its cell are placed on its nodes."""

    number: str
    placement: Placement
    site: Site
    seconds: float
    """Time until its limit, counted from when this was made."""
    image: str | None = None
    """The image that ranks run in, as `--image` names it."""

    @classmethod
    def find(cls, cell: Cell, site: Site, image: str | None = None) -> "Job":
        """Return the job that this process runs in. Raises ConfigError outside of one, or if the cell does not fit."""
        number = job_id()
        return cls(number=number, placement=place(cell, site), site=site, seconds=seconds_left(), image=image)

    def facts(self) -> dict[str, Any]:
        """Return the job's facts for records."""
        return {
            "job_id": self.number,
            **asdict(self.placement),
            "gres": self.site.gres,
            "seconds": finite(self.seconds),
        }

    @property
    def deadline_seconds(self) -> float | None:
        """Return the time that the cell has, as `--deadline` would give it; None without a limit."""
        return self.seconds - MARGIN_SECONDS if math.isfinite(self.seconds) else None

    @contextmanager
    def start(
        self, folder: Path, weights: Path | None, root: Path, checkpoints: Path | None, runtime: Runtime | None
    ) -> Iterator[Step]:
        """Start a task for each rank; at the end of the block none is left.

        folder: of the launch, empty except for the files of the cell, on a disk that all nodes see.
        """
        task = Task(
            weights=str(weights.absolute()) if weights else None,
            root=str(root.absolute()),
            checkpoints=str(checkpoints) if checkpoints else None,
            ranks_per_node=self.placement.ranks_per_node,
            interface=self.site.interface,
            runtime=runtime.name if runtime else "none",
            image=self.image if runtime else None,
        )
        save_json(asdict(task), folder / TASK)
        line = command(folder, self.placement, self.site.cpus_per_rank)
        process = Step(line, folder / "srun.log", preexec_fn=die_with_parent)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.close()
