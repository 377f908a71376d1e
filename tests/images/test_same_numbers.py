"""A cell has the same digits in processes, in containers, and as tasks of a Slurm job: from random and from pretrained
weights."""

import os
from dataclasses import replace

import pytest
import torch

from benchmarks.core.workloads import SMALL
from benchmarks.training.pretrain import pretrain
from tests.images.submit import submit
from tests.images.test_runtime import run

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a cluster on one machine needs root")
SITE = {"gpus_per_node": 0, "cpus_per_rank": 2, "memory_mb_per_rank": 2000}
"""More CPUs than a rank computes with."""
JOB = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=2"]
STEPS = 20
MODELS = [workload for workload in SMALL if workload.model in ("vgg-digits", "gpt2-bytes")]


@pytest.mark.parametrize("workload", MODELS, ids=lambda workload: workload.model)
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
    records["job"] = submit(tmp_path, cluster, cell, SITE, JOB, options)
    for record in records.values():
        assert record["provenance"]["threads"] == 1 and record["steps"] == STEPS
        for key in ("metrics", "metric_history", "total_bytes", "peak_states_bytes"):
            assert record[key] == records["processes"][key]
