"""The doctor of a cluster: what it makes of Slurm's words, without a Slurm."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from snakemake_executor_plugin_slurm.partitions import read_partition_file

from benchmarks.core.cell import Cell
from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import FAILED, OK, WARNING
from benchmarks.doctor.slurm import slurm_cluster as settings
from benchmarks.doctor.slurm.slurm_cluster import Inventory, Partition, Shape, gpus, look
from benchmarks.doctor.slurm.slurm_command import fill, propose, text_of, tries_of
from benchmarks.launching.slurm.site import Site
from benchmarks.launching.slurm.step import job_resources
from tests.slurm_outputs import CPUS, MIXED, SMALL, answering, shipped_site

SHIPPED = shipped_site()


def inventory(outputs: dict[str, str]) -> Inventory:
    return look(answering(outputs))


def tried(outputs: dict[str, str], *names: str) -> list[Partition]:
    return [it for it in inventory(outputs).partitions if it.name in names]


# --- what scontrol says ---


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu", {"": 1}),
        ("gpu:a100:2(IDX:0,1),gpu:v100:1(S:0)", {"a100": 2, "v100": 1}),
        ("nvme:1,gpu:1g.10gb:7(S:0-1)", {"1g.10gb": 7}),
        ("gpu:h100:no_consume:8", {"h100": 8}),
        ("(null)", {}),
        ("gpumem:80", {}),
    ],
)
def test_gpus_of_a_node(gres, found):
    assert gpus(gres) == found


def test_partitions_nodes_and_limits_are_found():
    small, mixed = inventory(SMALL), inventory(MIXED)
    assert small.settings["SLURM_VERSION"] == "22.05.8" and small.settings["MinJobAge"] == "300 sec"
    (only_one,) = small.partitions
    assert (only_one.is_default, only_one.max_nodes, len(only_one.usable)) == (True, None, 4)
    assert only_one.shape() == Shape("a100", 2, 8, 32000, 4)
    assert [it.max_minutes for it in mixed.partitions] == [7 * 1440, 1440, 120, math.inf]
    gpu, cpu = (next(it for it in mixed.partitions if it.name == name) for name in ("gpu", "cpu"))
    assert [node.name for node in gpu.usable] == ["g1", "g2", "g3", "g4"], "sleeping ones too, and none that is down"
    # One node has more than the others: what most have counts, without the CPUs and the memory that Slurm keeps.
    assert gpu.shape() == Shape("a100", 4, 126, 400000, 3, 2)
    finding = settings.check_nodes(gpu)
    assert finding is not None and finding.status == WARNING
    assert "2 of 6" in finding.detail and "g6 IDLE+DRAIN (gpu 3 = bad" in finding.detail
    assert settings.check_nodes(cpu) is None


def test_the_profile_needs_a_controller_that_remembers(tmp_path):
    profile = tmp_path / "config.yaml"
    profile.write_text("slurm-status-command: squeue\nslurm-init-seconds-before-status-checks: 30\n")
    assert settings.check_profile(inventory(SMALL), profile).status == OK
    forgets = settings.check_profile(inventory(CPUS), profile)
    assert forgets.status == FAILED and "60 s" in forgets.detail and "status-checks: 20" in str(forgets.cure)
    profile.write_text("slurm-init-seconds-before-status-checks: 30\n")
    assert settings.check_profile(inventory(SMALL), profile).status == WARNING
    assert settings.check_profile(inventory(SMALL), ROOT / "slurm/config.yaml").status == OK


# --- the site file ---


def write(tmp_path: Path, outputs: dict[str, str], *names: str, text: str = SHIPPED) -> tuple[Path, Any]:
    proposal = propose(tried(outputs, *names), [], Site(), 5)
    path = tmp_path / "partitions.yaml"
    path.write_text(text_of(fill(yaml.safe_load(text), proposal)), encoding="utf-8")
    return path, proposal


@pytest.mark.parametrize(
    ("outputs", "names", "site"),
    [
        (SMALL, ["gpu"], {"gpus_per_node": 2, "gres": "gpu", "cpus_per_rank": 3, "memory_mb_per_rank": 3040}),
        (
            MIXED,
            ["cpu", "gpu", "old"],
            {"gpus_per_node": 4, "gres": "gpu:a100", "cpus_per_rank": 16, "memory_mb_per_rank": 19000},
        ),
        (CPUS, ["batch"], {"gpus_per_node": 0, "ranks_per_node": 4, "cpus_per_rank": 1, "longest_minutes": 30}),
    ],
)
def test_the_file_loads_and_a_cell_of_two_whole_nodes_fits_a_partition_at_every_try(tmp_path, outputs, names, site):
    path, proposal = write(tmp_path, outputs, *names)
    loaded, partitions = Site.load(path), read_partition_file(path)
    assert {name: getattr(loaded, name) for name in site} == site
    assert [it.name for it in partitions] == names == list(proposal.partitions)
    ranks = loaded.gpus_per_node or loaded.ranks_per_node
    for attempt in range(1, tries_of(ROOT / "slurm/config.yaml") + 1):
        resources = job_resources(Cell(model="resnet-digits", world_size=2 * ranks), loaded, attempt)
        job = SimpleNamespace(resources=resources, threads=2, name="cell")
        assert any(it.score_job_fit(job) is not None for it in partitions), (attempt, resources)


def test_the_site_describes_the_partition_that_was_chosen():
    every = tried(MIXED, "cpu", "gpu", "old")
    assert propose(every, [], Site(), 5).main == "gpu", "GPUs come before Slurm's default"
    chosen = propose(every, ["old", "gpu"], Site(), 5)
    assert chosen.main == "old" and chosen.site["gres"] == "gpu:v100" and chosen.site["gpus_per_node"] == 2
    assert "cpu, gpu differs" in chosen.note
