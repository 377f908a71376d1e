"""One cell of each small model has the same digits in processes, in containers, and as tasks of a Slurm job."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.files import load_json, save_json
from benchmarks.pretrain import pretrain
from benchmarks.workflow.content import ROOT
from benchmarks.workloads import SMALL
from tests.images.test_runtime import run
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a cluster on one machine needs root")
SITE = {"gpus_per_node": 0, "cpus_per_rank": 2, "memory_mb_per_rank": 2000}
"""More CPUs than a rank computes with."""
ALLOCATION = ["salloc", "--quiet", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=2"]
STEPS = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.model)
def test_every_launcher_trains_to_the_same_digits(tmp_path, cluster, image, workload):
    cell = {"model": workload.model, "scheme": "w+2d", "gradients": "streamed", "steps": STEPS}
    options = []
    if workload.pretrain_steps:
        torch.save(pretrain(replace(workload, pretrain_steps=20), print), tmp_path / "weights.pt")
        options = ["--weights", str(tmp_path / "weights.pt")]
    records = {}
    for name, where in (("processes", None), ("containers", image)):
        (tmp_path / name).mkdir()
        status, said, records[name] = run(tmp_path / name, cell, where, *options)
        assert status == 0, said
    records["job"] = submit(tmp_path, cluster, cell, options)
    for record in records.values():
        assert record["provenance"]["threads"] == 1 and record["steps"] == STEPS
        for key in ("metrics", "metric_history", "total_bytes", "peak_states_bytes"):
            assert record[key] == records["processes"][key]


def submit(folder: Path, cluster: Cluster, cell: dict[str, object], options: list[str]) -> dict[str, object]:
    """Run a cell as a job, and return its record."""
    save_json(cell, folder / "cell.json")
    (folder / "site.yaml").write_text(json.dumps({"partitions": {}, "site": SITE}))
    line = [sys.executable, "-m", "benchmarks", "run", "--cell", "cell.json", "--output", "cells/out.json"]
    done = cluster.run(
        [*ALLOCATION, *line, "--launcher", "srun", "--site", "site.yaml", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout_seconds=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return load_json(folder / "cells/out.json")
