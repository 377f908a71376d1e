"""What `python -m benchmarks run --launcher srun` adds to a run on one machine: the job's nodes, and its time limit."""

import math
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import finite
from benchmarks.launching.containers.runtime import Runtime
from benchmarks.launching.slurm.job import job_id, seconds_left
from benchmarks.launching.slurm.job_resources import Placement, place
from benchmarks.launching.slurm.site import Site
from benchmarks.launching.slurm.step import StepRank, Task, step

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

    def start(
        self, folder: Path, weights: Path | None, root: Path, checkpoints: Path | None, runtime: Runtime | None
    ) -> AbstractContextManager[list[StepRank]]:
        """Start the ranks, as `benchmarks.launching.slurm.step.step` does; `folder` is that of the launch."""
        task = Task(
            weights=str(weights.absolute()) if weights else None,
            root=str(root.absolute()),
            checkpoints=str(checkpoints) if checkpoints else None,
            ranks_per_node=self.placement.ranks_per_node,
            interface=self.site.interface,
            scratch=self.site.scratch,
            runtime=runtime.name if runtime else "none",
            image=self.image if runtime else None,
            network=runtime.network if runtime else "host",
        )
        return step(folder, self.placement, self.site.cpus_per_rank, task)
