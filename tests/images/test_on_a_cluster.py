"""Cells of a Slurm job, in processes and in a container for each task of srun, have the digits of one machine."""

import os
from dataclasses import replace

import pytest
import torch

from benchmarks.core.workloads import SMALL
from benchmarks.launching.containers.entry import ImageEntry
from benchmarks.training.pretrain import pretrain
from tests.images.submit import submit
from tests.images.test_runtime import run

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a cluster on one machine needs root")
MODELS = [workload for workload in SMALL if workload.model in ("vgg-digits", "gpt2-bytes")]


@pytest.mark.parametrize("workload", MODELS, ids=lambda workload: workload.model)
def test_every_launcher_trains_to_the_same_digits(tmp_path, cluster, image, workload):
    cell, options = {"model": workload.model, "scheme": "w+2d", "gradients": "streamed", "steps": 20}, []
    if workload.pretrain_steps:
        torch.save(pretrain(replace(workload, pretrain_steps=20), print), tmp_path / "weights.pt")
        options = ["--weights", str(tmp_path / "weights.pt")]
    records = {}
    for name, where in (("processes", None), ("containers", image)):
        (tmp_path / name).mkdir()
        status, said, records[name] = run(tmp_path / name, cell, where, *options)
        assert status == 0, said
    site = {"gpus_per_node": 0, "cpus_per_rank": 2, "memory_mb_per_rank": 2000}  # more CPUs than a rank computes with
    job = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=2"]
    records["job"] = submit(tmp_path, cluster, cell, site, job, options)
    for record in records.values():
        assert record["provenance"]["threads"] == 1 and record["steps"] == 20
        for key in ("metrics", "metric_history", "total_bytes", "peak_states_bytes"):
            assert record[key] == records["processes"][key]


@pytest.mark.parametrize("backend", ["torch", "horovod"])
def test_ranks_in_containers_of_their_own_meet_on_one_node_and_on_two(tmp_path, cluster, image, sif, backend):
    site, histories = {"gpus_per_node": 2, "cpus_per_rank": 1, "memory_mb_per_rank": 1000}, []
    for nodes in (1, 2):
        folder, each = tmp_path / str(nodes), 2 // nodes
        folder.mkdir()
        cell = {"model": "vgg-digits", "scheme": "w", "steps": 3, "batch_per_rank": 4, "world_size": 2}
        job = [f"--nodes={nodes}", f"--ntasks-per-node={each}", f"--gres=gpu:{each}"]
        options = ["--runtime", "apptainer", "--image", image]
        record = submit(folder, cluster, cell | {"backend": backend, "nodes": nodes}, site, job, options)
        source = record["provenance"]
        assert source["image"]["runtime"] == "apptainer" and source["image_digest"] == ImageEntry.load(image).digest
        assert len(set(source["host_of_rank"])) == source["slurm"]["nodes"] == nodes
        histories.append(record["metric_history"])
    (tmp_path / "docker").mkdir()
    histories.append(run(tmp_path / "docker", cell, image)[2]["metric_history"])
    assert histories[0] == histories[1] == histories[2]
