"""Each task of srun starts the container of its rank itself: on one node and on two, ranks meet and train."""

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.launching.containers.entry import ImageEntry
from tests.images.submit import submit
from tests.images.test_runtime import CELL, run

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a cluster on one machine needs root")
PAIR = {**CELL, "world_size": 2}
SITE = {"gpus_per_node": 2, "cpus_per_rank": 1, "memory_mb_per_rank": 1000}


@pytest.fixture(scope="module")
def under_docker(tmp_path_factory: pytest.TempPathFactory, image: Path) -> dict[str, Any]:
    """The record of the cell on one machine."""
    status, said, record = run(tmp_path_factory.mktemp("docker"), PAIR, image)
    assert status == 0, said
    return record


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("backend", ["torch", "horovod"])
def test_ranks_in_containers_of_their_own_meet(tmp_path, cluster, image, sif, under_docker, backend, nodes):
    each, cell = 2 // nodes, {**PAIR, "backend": backend, "nodes": nodes}
    job = [f"--nodes={nodes}", f"--ntasks-per-node={each}", f"--gres=gpu:{each}"]
    options = ["--runtime", "apptainer", "--image", image]
    record = submit(tmp_path, cluster, cell, SITE, job, options)
    source = record["provenance"]
    assert source["image"]["runtime"] == "apptainer" and source["image_digest"] == ImageEntry.load(image).digest
    assert len(set(source["host_of_rank"])) == source["slurm"]["nodes"] == nodes
    assert record["metric_history"] == under_docker["metric_history"]
