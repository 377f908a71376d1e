"""A copy of the project in which the workflow is run on a cluster as a user runs it, and what it left."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.paths import ROOT
from benchmarks.core.record import CellResult
from tests.slurm.cluster import Cluster, Program

SITE = {"gpus_per_node": 2, "cpus_per_rank": 1, "memory_mb_per_rank": 1000, "minutes": 10}
FAST = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
"""Tests wait for jobs of seconds, not of hours."""


@dataclass(frozen=True)
class Project:
    """The copy, and the cluster that it is used on."""

    folder: Path
    cluster: Cluster

    @classmethod
    def make(cls, folder: Path, cluster: Cluster, matrix: Sequence[dict[str, Any]], **site: Any) -> "Project":
        """Copy the project, with a config `my.yaml` of the matrix and the site's file of the cluster."""
        for name in ("benchmarks", "resireduce", "slurm", "results/paper", "results/reference"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Snakefile", "Makefile"):
            shutil.copy(ROOT / name, folder)
        (folder / "my.yaml").write_text(json.dumps({"matrix": list(matrix)}), encoding="utf-8")
        values = {"partitions": {}, "site": SITE | site}
        (folder / "slurm/partitions.yaml").write_text(json.dumps(values), encoding="utf-8")
        return cls(folder, cluster)

    def start(self, *options: object, run: str = "mine") -> Program:
        """Start `snakemake --profile slurm`; what it says goes to the file `screen.txt`."""
        command = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--configfile", "my.yaml"]
        return self.popen([*command, "--config", f"run={run}", *FAST, *options])

    def resume(self, *options: object, run: str = "mine") -> Program:
        """Start `make resume`, but for the virtual environment, which is the one of this interpreter."""
        return self.popen([sys.executable, "-m", "benchmarks", "resume", "--run", run, "--", *FAST, *options])

    def popen(self, command: Sequence[object]) -> Program:
        """Start a command in the copy, on the login node."""
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        with (self.folder / "screen.txt").open("a", encoding="utf-8") as screen:
            return self.cluster.popen(command, cwd=self.folder, env=environment, stdout=screen, stderr=screen)

    @property
    def screen(self) -> str:
        """All that was said so far."""
        return (self.folder / "screen.txt").read_text(encoding="utf-8")

    def records(self, run: str = "mine") -> dict[str, CellResult]:
        """Return the records of finished cells, by name."""
        files = sorted((self.folder / f"results/runs/{run}/cells").glob("*.json"))
        return {file.stem: CellResult.load(file) for file in files if not file.stem.endswith(".failed")}

    def table(self, name: str, run: str = "mine") -> str:
        """Return a table as CSV."""
        return (self.folder / f"results/runs/{run}/tables/{name}.csv").read_text(encoding="utf-8")
