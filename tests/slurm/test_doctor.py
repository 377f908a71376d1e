"""The doctor of a cluster, on one: what it finds there, and that the site file it writes is one to run by."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.core.paths import ROOT
from benchmarks.core.record import CellResult
from benchmarks.launching.slurm.site import Site

DOCTOR = [sys.executable, "-m", "benchmarks", "doctor", "--slurm", "--json"]
RUN = ROOT / "results/runs/doctor-on-a-cluster"
CELL = {"model": "resnet-digits", "compressor": "none", "scheme": "none", "steps": 2, "world_size": 4, "nodes": 2}


@pytest.fixture
def run_folder():
    shutil.rmtree(RUN, ignore_errors=True)
    yield RUN
    shutil.rmtree(RUN, ignore_errors=True)


def test_it_finds_the_cluster_and_writes_the_file_that_a_matrix_runs_by(cluster, tmp_path, run_folder):
    site = tmp_path / "partitions.yaml"
    done = cluster.run([*DOCTOR, "--write", site], cwd=ROOT, timeout_seconds=400)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    right = {it["check"]: it["detail"] for it in values["findings"] if it["status"] == "ok"}
    assert "takes a job on a node with 2 GPUs, account not needed" in right["job"]
    assert set(right) == {"slurm", "job", "site"}
    assert yaml.safe_load(site.read_text(encoding="utf-8"))["partitions"] == {
        "gpu": {"max_nodes": 4, "max_gpu": 2, "available_gpu_models": ["a100"], "max_mem_mb": 32000}
    }
    assert Site.load(site).gpus_per_node == 2
    assert not [job for job in cluster.jobs() if job.state in ("PENDING", "RUNNING")]
    config = tmp_path / "one.yaml"
    config.write_text(yaml.safe_dump({"matrix": [CELL]}), encoding="utf-8")
    snakemake = [Path(sys.executable).with_name("snakemake"), "--profile", "slurm", "--configfile", config]
    options = ["--slurm-init-seconds-before-status-checks", "2", "--config", f"run={RUN.name}", f"site={site}"]
    done = cluster.run([*snakemake, *options], cwd=ROOT, timeout_seconds=400)
    assert done.returncode == 0, done.stderr
    (record,) = (CellResult.load(path) for path in (run_folder / "cells").glob("*.json"))
    assert record.status == "ok"
    assert sorted(record.provenance["ranks_per_host"].values()) == [2, 2]
    assert record.provenance["visible_gpus"] == ["0,1"] * 4
