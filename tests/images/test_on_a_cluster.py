"""Each task of srun starts the container of its rank itself: on one node and on two, ranks meet and train."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.files import load_json, save_json
from benchmarks.images.entry import ImageEntry
from benchmarks.workflow.content import ROOT
from tests.images.test_runtime import CELL, run
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a cluster on one machine needs root")
PAIR = {**CELL, "world_size": 2}
SITE = {"gpus_per_node": 2, "cpus_per_rank": 1, "memory_mb_per_rank": 1000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def under_docker(tmp_path_factory: pytest.TempPathFactory, image: Path) -> dict[str, Any]:
    """The record of the cell on one machine."""
    status, said, record = run(tmp_path_factory.mktemp("docker"), PAIR, image)
    assert status == 0, said
    return record


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("backend", ["torch", "horovod"])
def test_ranks_in_containers_of_their_own_meet(tmp_path, cluster, image, sif, under_docker, backend, nodes):
    save_json({**PAIR, "backend": backend, "nodes": nodes}, tmp_path / "cell.json")
    (tmp_path / "site.yaml").write_text(json.dumps({"partitions": {}, "site": SITE}))
    each, options = 2 // nodes, ["--launcher", "srun", "--site", "site.yaml", "--network", "host"]
    job = ["salloc", "--quiet", f"--nodes={nodes}", f"--ntasks-per-node={each}", f"--gres=gpu:{each}"]
    line = [sys.executable, "-m", "benchmarks", "run", "--cell", "cell.json", "--output", "cells/out.json"]
    done = cluster.run(
        [*job, *line, *options, "--runtime", "apptainer", "--image", image],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout_seconds=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = load_json(tmp_path / "cells/out.json")
    source = record["provenance"]
    assert source["image"]["runtime"] == "apptainer" and source["image_digest"] == ImageEntry.load(image).digest
    assert len(set(source["host_of_rank"])) == source["slurm"]["nodes"] == nodes
    assert record["metric_history"] == under_docker["metric_history"]
