"""The site file, and where the ranks of a cell go: what is asked of Slurm for them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

from benchmarks.core.cell import Cell
from benchmarks.launching.slurm.site import Site
from benchmarks.launching.slurm.step import Placement, job_resources, place
from benchmarks.workflow.where import get_site
from resireduce.errors import ConfigError
from tests.slurm_outputs import shipped_site


def ranks(count: int, nodes: int | None = None) -> Cell:
    return Cell(model="vgg-digits", world_size=count, nodes=nodes)


BAD_SITES = [
    ("site: {}", r"partitions: missing"),
    ("partitions: {}\nsite: {gpus: 2}", r"'gpus' is not known"),
    ("partitions: {}\nsite: {gpus_per_node: -1}", r"gpus_per_node: -1 is not allowed; give a whole number, 0 or more"),
    ("partitions: {}\nsite: {runtime: dokcer}", r"runtime: 'dokcer' is not known \(did you mean 'docker'\?\)"),
    ("partitions: {}\nsite: {account: ", r"line 2, column .*; mend that place, as in slurm/partitions.default.yaml"),
    ("partitions: {}\nsite: {minutes: 10, minutes: 20}", r"key 'minutes' is there twice"),
    ("partitions: {}\nsite: {network: none}", r"'network' is not known"),
]


def test_a_site_file_from_before_that_said_what_is_always_so_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "partitions.yaml"
    file.write_text("partitions: {}\nsite: {network: host, modules: [], scratch: null, minutes: 7}")
    assert Site.load(file).minutes == 7


@pytest.mark.parametrize(("text", "message"), BAD_SITES)
def test_a_site_that_cannot_be_used_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Site.load(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cell", "gpus", "placement"),
    [
        (ranks(1), 8, Placement(1, 1)),
        (ranks(64), 8, Placement(8, 8)),
        (ranks(2, nodes=2), 8, Placement(2, 1)),
        (ranks(12), 8, Placement(2, 6)),
        (ranks(4), 0, Placement(2, 2)),
    ],
)
def test_ranks_are_on_as_few_nodes_as_hold_them(cell: Cell, gpus: int, placement: Placement) -> None:
    assert place(cell, Site(gpus_per_node=gpus, ranks_per_node=2)) == placement


def test_a_node_holds_no_more_ranks_than_gpus() -> None:
    with pytest.raises(ConfigError, match=r"nodes: 2 would put 4 ranks on each, and the site has gpus_per_node: 2"):
        place(ranks(8, nodes=2), Site(gpus_per_node=2))


def test_gpus_are_asked_for_by_node_and_more_with_each_try() -> None:
    site = Site(gres="gpu:a100", gpus_per_node=4, memory_mb_per_rank=100, minutes=60, longest_minutes=100)
    first, second = (job_resources(ranks(8), site, attempt) for attempt in (1, 2))
    assert first["gres"] == "gpu:a100:4" and first["nodes"] == 2 and "tasks" not in first
    assert first["slurm_extra"] == "--ntasks-per-node=4"
    assert (first["mem_mb"], second["mem_mb"]) == (400, 800)
    assert (first["runtime"], second["runtime"]) == (60, 100)
    assert job_resources(ranks(8), replace(site, most_memory_mb=700), 2)["mem_mb"] == 700


def test_an_account_is_named_and_without_gpus_tasks_are_asked_for() -> None:
    extra = job_resources(ranks(2), Site(account="my lab"))["slurm_extra"]
    assert extra == "--ntasks-per-node=2 -A'my lab'"
    validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(slurm_extra=extra)))
    found = job_resources(ranks(4), Site(gpus_per_node=0, ranks_per_node=2))
    assert found["tasks"] == 4 and "gres" not in found


def test_the_site_is_that_of_the_profile(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("partitions: {}\nsite: {minutes: 7, runtime: apptainer, image: cpu}")
    config = {"site": str(file)}
    assert get_site(config, {"cell": {"launcher": "srun"}}) == Site(minutes=7, runtime="apptainer", image="cpu")
    assert (config["runtime"], config["image"]) == ("apptainer", "cpu")
    with pytest.raises(ConfigError, match=r"site: 'a.yaml' is of no use without the profile"):
        get_site({"site": "a.yaml"}, {})
    assert get_site({}, {}) is None


def test_sites_that_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    for text, site in (
        (shipped_site(), Site()),
        ("partitions: {a: {max_gpu: 8, max_runtime: 1-00:00:00}, b: {max_nodes: .inf}, c: {}}\n", Site()),
        (
            "partitions: {a: &a {max_gpu: 8, max_nodes: 4}, b: {<<: *a, max_nodes: 2}}\nsite: {minutes: 7}",
            Site(minutes=7),
        ),
    ):
        file.write_text(text)
        assert Site.load(file) == site
